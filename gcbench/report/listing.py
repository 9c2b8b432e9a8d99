"""The lists of `gcbench report list` and `gcbench runs`: tables, and everything that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcbench.config import budget_names
from gcbench.console import TextTable
from gcbench.identity import all_knobs, tell_apart
from gcbench.records.store import RecordedRun
from gcbench.report.document import (
    DIRTY,
    DIRTY_NOTE,
    EMPTY,
    STALE,
    STALE_NOTE,
    format_number,
    marks_of,
)
from gcbench.report.measures import MEASURES, main_score, measure
from gcbench.report.rows import group_runs
from gcbench.report.study import find_study
from gcbench.report.tables import read_table, table_names

if TYPE_CHECKING:
    from pandas import DataFrame

MOST = 4  # overrides of a run that are shown; more would make its line hard to read


def list_tables(runs: Sequence[RecordedRun], folders: Sequence[str | Path]) -> TextTable:
    """Return one line per table, with how many of its rows have a run that is done, by budget."""
    by_budget = {name: [run for run in runs if run.budget == name] for name in budget_names()}
    lines = []
    for name in table_names():
        table = read_table(name)
        if table.study:
            study = "study" if find_study(table.study, folders) else "study, not run"
            counts = [study, *([EMPTY] * (len(by_budget) - 1))]
        else:
            groups = (group_runs(table, some, budget) for budget, some in by_budget.items())
            counts = [str(sum(bool(row.done) for row in rows)) for rows in groups]
        lines.append([name, table.title, str(len(table.rows)), *counts])
    return TextTable(["table", "title", "rows", *by_budget], lines, left=(0, 1))


def list_runs(runs: Sequence[RecordedRun]) -> TextTable:
    """Return a row for every run, in the order of `runs`; below them why some are not done."""
    headings = [
        "run",
        "what",
        "budget",
        "seed",
        "status",
        "score",
        "ratio",
        "received",
        "ms per step",
    ]
    overrides = overrides_by_run({run: run.title for run in runs})
    rows = [_texts(run, overrides[run]) for run in runs]
    marks, explained = marks_of(runs), {DIRTY: DIRTY_NOTE, STALE: STALE_NOTE}
    notes = [f"{mark} {explained[mark]}" for mark in marks]
    notes += [
        f"{run.place}: {run.status}: {run.result.reason}" for run in runs if run.result.reason
    ]
    return TextTable([*headings, "finished"], rows, left=(0, 1, 2, 4, 5, 9), notes=notes)


def overrides_by_run(titles: Mapping[RecordedRun, str]) -> dict[RecordedRun, list[str]]:
    """Return the overrides that distinguish each run from others of its title, null ones last."""
    called_alike: dict[str, list[RecordedRun]] = {}
    for run, title in titles.items():
        called_alike.setdefault(title, []).append(run)
    return {
        run: sorted(overrides, key=lambda override: override.endswith("=null"))
        for peers in called_alike.values()
        for run, overrides in zip(
            peers, tell_apart([{**peer.choices, **peer.flat} for peer in peers]), strict=True
        )
    }


def add_overrides(title: str, overrides: Sequence[str]) -> str:
    """Return a title with at most `MOST` of these overrides."""
    more = ["..."] if len(overrides) > MOST else []
    return " ".join([title, *overrides[:MOST], *more])


def _texts(run: RecordedRun, overrides: Sequence[str]) -> list[str]:
    """Return the cells of a run; `overrides` distinguish it from other runs of its title."""
    result = run.result
    what = add_overrides(run.title, overrides)
    if run.title != run.experiment:
        what += f", {result.workers or '?'} worker{'s' * (result.workers != 1)}"
    scored = main_score(result)
    return [
        run.place,
        what,
        run.budget,
        str(run.seed),
        run.status + marks_of([run]),
        f"{scored[0]} {_text(scored[1])}" if scored else EMPTY,
        _text(measure("ratio", result)),
        _text(measure("received_ratio", result)),
        _text(measure("step_milliseconds", result)),
        result.finished_minute,
    ]


def _text(value: float | None) -> str:
    return EMPTY if value is None else format_number(value, None)


def runs_frame(runs: Sequence[RecordedRun]) -> DataFrame:
    """Return a row for every run: what it was, how it ended, all measures, and all knobs.

    Measures are plain numbers. The columns of knobs have their command-line keys as names.
    """
    from pandas import DataFrame  # slow to import, and other commands do not need it

    return DataFrame([_record(run) for run in runs])


def _record(run: RecordedRun) -> dict[str, Any]:
    return {
        "run": run.place,
        "experiment": run.experiment,
        **run.choices,
        "workers": run.result.workers,
        "budget": run.budget,
        "seed": run.seed,
        "status": run.status,
        "reason": run.result.reason,
        "finished": run.result.finished,
        **{name: measure(name, run.result) for name in MEASURES},
        **knobs_of(run),
    }


def knobs_of(run: RecordedRun) -> dict[str, Any]:
    """Return a run's knobs by command-line key, including those of how it was executed."""
    knobs = all_knobs(run.config).items()
    return {key: value for key, value in knobs if not key.endswith("._target_")}
