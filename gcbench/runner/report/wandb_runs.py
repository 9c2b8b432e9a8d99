"""Runs of a W&B project, as `gcbench` logged them: results in summaries, metrics as history."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import isfinite
from typing import Any

from gcbench.core.errors import ConfigError
from gcbench.runner.records.files import printable
from gcbench.runner.records.metrics import split_events
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import FoundRuns, Metrics, RecordedRun, sort_by_age
from gcbench.runner.records.wandb_service import own_settings


def load_wandb(project: str, api: Any = None) -> FoundRuns:
    """Return the runs of a project `entity/project`; `api` is a wandb.Api, by default a new one.

    Raises ConfigError if the project is mistyped or cannot be read.
    """
    if project.count("/") != 1:
        raise ConfigError(f"project={project}: type entity/project, as in project=my-team/gcbench")
    runs: dict[str, RecordedRun] = {}
    unreadable = []
    for listed in _list_runs(project, api):
        place = f"{project}/{listed.id}"
        try:
            result = Result.parse(printable(listed.summary_metrics.get("result")))
            run = RecordedRun.of(result, place, partial(_metrics, listed))
        except ValueError as error:
            unreadable.append(f"{place}: {error}")
            continue
        runs.setdefault(run.copy_key, run)
    return FoundRuns(sort_by_age(runs.values()), unreadable)


def _list_runs(project: str, api: Any) -> Iterable[Any]:
    try:
        if api is None:
            import wandb  # reports from files do not need it

            own_settings()  # which it then uses, and not others that lie in the working directory
            api = wandb.Api()
        return list(api.runs(project))
    # W&B raises different classes for a missing key, network or project.
    except Exception as error:
        gist = str(error).partition("\n")[0]
        raise ConfigError(
            f"project={project}: W&B answers {type(error).__name__}: {gist}; "
            "type `wandb login`, or results=FOLDER for files"
        ) from error


def _metrics(run: Any) -> Metrics:
    """Return the lines that were logged, which W&B merges into one row per step.

    Only finite numbers are kept: W&B fills rows with null, and writes others as text.
    """
    rows = [
        {k: v for k, v in row.items() if isinstance(v, (int, float)) and isfinite(v)}
        for row in run.scan_history()
    ]
    return [line for row in rows for line in split_events(row, int(row["_step"]))]
