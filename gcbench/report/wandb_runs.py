"""Runs of a W&B project: `gcbench` sends it the dictionaries that it writes to files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from gcbench.config import ConfigError
from gcbench.records.reading import printable
from gcbench.records.schema import Result
from gcbench.records.store import FoundRuns, Metrics, RecordedRun, sort_by_age


def load_wandb(project: str, api: Any = None) -> FoundRuns:
    """`project` is entity/project; `api` is a wandb.Api."""
    if project.count("/") != 1:
        raise ConfigError(f"project={project}: type entity/project, as in project=my-team/gcbench")
    found: dict[str, RecordedRun] = {}
    unreadable = []
    for listed in _listed(project, api):
        place = f"{project}/{listed.id}"
        try:
            result = Result.parse(printable(listed.summary_metrics))
            run = RecordedRun(result, place, partial(_metrics, listed))
        except ValueError as error:
            unreadable.append(f"{place}: {error}")
            continue
        found.setdefault(run.copy_key, run)
    return FoundRuns(sort_by_age(found.values()), unreadable)


def _listed(project: str, api: Any) -> Iterable[Any]:
    try:
        if api is None:
            import wandb  # here, as reports from files need none

            api = wandb.Api()
        return list(api.runs(project))
    except (
        Exception
    ) as error:  # no key, no network, no such project: W&B has a class of its own for each
        gist = str(error).partition("\n")[0]
        raise ConfigError(
            f"project={project}: W&B answers {type(error).__name__}: {gist}; type `wandb login`, or results=FOLDER for files"
        ) from error


def _metrics(run: Any) -> Metrics:
    """Without what W&B adds, and without the nulls with which it fills lines of another event."""
    return [
        {k: v for k, v in line.items() if not k.startswith("_") and v is not None}
        for line in run.scan_history()
    ]
