"""Runs of other experiments that are a row's own: tables share rows, and nobody computes them twice."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from gcbench.config import Config, conf_directory
from gcbench.identity import EXECUTION
from gcbench.records.store import RecordedRun
from gcbench.report.configs import Composed, composed


def is_same(run: RecordedRun, expected: Composed) -> bool:
    """Whether a run of another experiment computed what the row asks for and, if it has times, executed as the row does."""
    if run.result.identity != expected.identity:
        return False
    return run.result.seconds is None or _execution(_as_written(run)) == _execution(expected.config)


def _as_written(run: RecordedRun) -> Config:
    """The configuration of its experiment's file, as what was typed beside it would have been typed beside the row, too."""
    written = (
        run.experiment and (conf_directory() / "experiment" / f"{run.experiment}.yaml").is_file()
    )
    return composed(str(run.experiment), run.budget).config if written else run.config


def _execution(config: Config) -> Config:
    return {
        k: v for k, v in config["trainer"].items() if k in EXECUTION and k != "record_gradients"
    }


def sources(runs: Iterable[RecordedRun]) -> str:
    """Whose runs these are, as in run of powersgd/table4/rank_2; empty for none."""
    titles = sorted({run.title for run in runs})
    return f"run of {' and '.join(titles)}" if titles else ""


def by_experiment(runs: Iterable[RecordedRun]) -> list[tuple[str, list[RecordedRun]]]:
    """Runs of each title, in the order of titles."""
    ordered = sorted(runs, key=lambda run: (run.title, run.seed))
    return [(title, list(same)) for title, same in groupby(ordered, key=lambda run: run.title)]
