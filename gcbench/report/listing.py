"""`gcbench report list` and `gcbench runs`: what there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gcbench.config import conf_directory
from gcbench.records.store import RecordedRun
from gcbench.report.configs import settings_at
from gcbench.report.document import DIRTY, EMPTY, number
from gcbench.report.measures import measure
from gcbench.report.rows import agrees
from gcbench.report.study import find_study
from gcbench.report.tables import Table, read_table, table_names

Grid = tuple[list[str], list[list[str]]]


def tables_listed(runs: Sequence[RecordedRun], folders: Sequence[str | Path]) -> Grid:
    """Every table, and how many of its rows have a run that was done, by budget."""
    budgets = sorted(path.stem for path in (conf_directory() / "budget").glob("*.yaml"))
    rows = []
    for name in table_names():
        table = read_table(name)
        if table.study:
            counts = [
                "study" if find_study(table.study, folders) else "study, not run",
                *([EMPTY] * (len(budgets) - 1)),
            ]
        else:
            counts = [str(_rows_done(table, runs, budget)) for budget in budgets]
        rows.append([name, table.title, str(len(table.rows)), *counts])
    return ["table", "title", "rows", *budgets], rows


def _rows_done(table: Table, runs: Sequence[RecordedRun], budget: str) -> int:
    done: dict[str | None, list[RecordedRun]] = {}
    for run in runs:
        if run.done and run.budget == budget:
            done.setdefault(run.experiment, []).append(run)
    rows = [row for row in table.rows if row.experiment in done]
    return sum(
        any(agrees(run, settings_at(row, budget)) for run in done[row.experiment]) for row in rows
    )


def runs_listed(runs: Sequence[RecordedRun]) -> Grid:
    """One line a run, the newest last."""
    return ["run", "what", "budget", "seed", "status", "score", "ratio", "ms a step", "finished"], [
        _row(run) for run in runs
    ]


def _row(run: RecordedRun) -> list[str]:
    result = run.result
    reason = f": {result.reason}" if result.reason else ""
    what = (
        run.title
        if run.title == run.experiment
        else f"{run.title}, {result.workers or '?'} workers"
    )
    day = result.finished.replace("T", " ")[:16]
    numbers = [_shown(measure(name, result)) for name in ("ratio", "step_milliseconds")]
    return [
        run.place,
        what,
        run.budget,
        str(run.seed),
        run.status + DIRTY * run.dirty + reason,
        _score(run),
        *numbers,
        day,
    ]


def _score(run: RecordedRun) -> str:
    found = ((name, measure(name, run.result)) for name in ("accuracy", "perplexity", "loss"))
    return next((f"{name} {_shown(value)}" for name, value in found if value is not None), EMPTY)


def _shown(value: float | None) -> str:
    return EMPTY if value is None else number(value, None)
