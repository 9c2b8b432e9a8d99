"""Runs of other experiments that serve a row, too: tables share rows that are computed once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from gcbench.config import Config, conf_directory
from gcbench.identity import EXECUTION, as_overrides, flat_differences
from gcbench.records.store import RecordedRun
from gcbench.report.configs import Composition, compose


def is_same(run: RecordedRun, expected: Composition) -> bool:
    """Return whether a run of another experiment computed what the row asks for.

    If it has times, it must have been executed as the row is, too.
    """
    if run.result.identity != expected.identity:
        return False
    return run.result.seconds is None or _execution(_as_written(run)) == _execution(expected.config)


def _as_written(run: RecordedRun) -> Config:
    """Return the configuration of its experiment's file, with the run's backend.

    Other keys that were typed beside the experiment would have been typed beside the row, too; by
    their backend rows of one experiment may differ.
    """
    if not _has_file(run):
        return run.config
    config = compose(str(run.experiment), run.budget).config
    return {**config, "trainer": {**config["trainer"], "backend": run.config["trainer"]["backend"]}}


def _has_file(run: RecordedRun) -> bool:
    file = conf_directory() / "experiment" / f"{run.experiment}.yaml"
    return run.experiment is not None and file.is_file()


def overrides_of_run(run: RecordedRun) -> list[str]:
    """Return what was typed beside the run's experiment, by where it differs from that."""
    if not _has_file(run):
        return []
    return as_overrides(flat_differences(run.flat, compose(str(run.experiment), run.budget).flat))


def _execution(config: Config) -> Config:
    return {
        k: v for k, v in config["trainer"].items() if k in EXECUTION and k != "record_gradients"
    }


def describe_sources(runs: Iterable[RecordedRun]) -> str:
    """Return whose runs these are, as in run of powersgd/table4/rank_2; empty for none."""
    labels = [label for label, _ in group_by_label(runs)]
    return f"run of {' and '.join(labels)}" if labels else ""


def group_by_label(runs: Iterable[RecordedRun]) -> list[tuple[str, list[RecordedRun]]]:
    """Return the runs of each title and what was typed beside it, in the order of these labels."""
    labels = {run: " ".join([run.title, *overrides_of_run(run)]) for run in runs}
    ordered = sorted(labels, key=lambda run: (labels[run], run.seed))
    return [(label, list(same)) for label, same in groupby(ordered, key=labels.__getitem__)]
