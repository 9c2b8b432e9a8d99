"""Runs that a row borrows from other experiments: rows that tables share need to run only once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from gcbench.config import Config
from gcbench.config.choices import row_names
from gcbench.identity import EXECUTION, as_overrides, flat_differences
from gcbench.records.store import RecordedRun
from gcbench.report.configs import Composition, compose


def is_same(run: RecordedRun, expected: Composition) -> bool:
    """Return whether a run of another experiment computed what the row asks for.

    If it has times, it must also have been executed in the same way as the row.
    """
    if run.result.identity != expected.identity:
        return False
    return run.result.seconds is None or _execution(_as_written(run)) == _execution(expected.config)


def _as_written(run: RecordedRun) -> Config:
    """Return the configuration of the run's experiment, with the run's backend.

    Other overrides of the run are left out, because they would have been typed for the row as well.
    The backend is kept, because rows of one experiment may differ in it. A run of an
    experiment that no table has keeps its own configuration.
    """
    if not _is_in_a_table(run):
        return run.config
    config = compose(str(run.experiment), run.budget).config
    return {**config, "trainer": {**config["trainer"], "backend": run.config["trainer"]["backend"]}}


def _is_in_a_table(run: RecordedRun) -> bool:
    table, _, row = (run.experiment or "").rpartition("/")
    return row in row_names(table)


def overrides_of_run(run: RecordedRun) -> list[str]:
    """Return the overrides in which a run differs from its experiment; none if that is unknown."""
    if not _is_in_a_table(run):
        return []
    return as_overrides(flat_differences(run.flat, compose(str(run.experiment), run.budget).flat))


def _execution(config: Config) -> Config:
    return {
        k: v for k, v in config["trainer"].items() if k in EXECUTION and k != "record_gradients"
    }


def describe_sources(runs: Iterable[RecordedRun]) -> str:
    """Return whose runs these are, such as `run of powersgd/table4/rank_2`; empty for no runs."""
    labels = [label for label, _ in group_by_label(runs)]
    return f"run of {' and '.join(labels)}" if labels else ""


def group_by_label(runs: Iterable[RecordedRun]) -> list[tuple[str, list[RecordedRun]]]:
    """Return (label, runs) pairs sorted by label, which is the title and overrides of the runs."""
    labels = {run: " ".join([run.title, *overrides_of_run(run)]) for run in runs}
    ordered = sorted(labels, key=lambda run: (labels[run], run.seed))
    return [(label, list(same)) for label, same in groupby(ordered, key=labels.__getitem__)]
