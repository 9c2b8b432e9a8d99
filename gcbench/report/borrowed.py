"""Runs of other experiments that are a row's own: tables share rows, and nobody computes them twice."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from gcbench.config import Config, conf_directory
from gcbench.config.names import EXECUTION, WHOLE
from gcbench.report.configs import Composed, composed
from gcbench.report.load import Run


def is_same(run: Run, expected: Composed) -> bool:
    """Whether a run of another experiment computed what the row asks for and, if it has times, executed as the row does."""
    if any(run.flat[key] != value for key, value in expected.flat.items() if key in run.flat):
        return False
    newer = expected.flat.keys() - run.flat.keys()  # that an older gcbench did not know
    if run.flat.keys() - expected.flat.keys() or not all(key.startswith(WHOLE) for key in newer):
        return False
    return run.result.get("seconds") is None or _execution(_as_written(run)) == _execution(
        expected.config
    )


def _as_written(run: Run) -> Config:
    """The configuration of its experiment's file, as what was typed beside it would have been typed beside the row, too."""
    written = (
        run.experiment and (conf_directory() / "experiment" / f"{run.experiment}.yaml").is_file()
    )
    return composed(str(run.experiment), run.budget).config if written else run.config


def _execution(config: Config) -> Config:
    return {
        k: v for k, v in config["trainer"].items() if k in EXECUTION and k != "record_gradients"
    }


def sources(runs: Iterable[Run]) -> str:
    """Whose runs these are, as in run of powersgd/table4/rank_2; empty for none."""
    titles = sorted({run.title for run in runs})
    return f"run of {' and '.join(titles)}" if titles else ""


def by_experiment(runs: Iterable[Run]) -> list[tuple[str, list[Run]]]:
    """Runs of each title, in the order of titles."""
    ordered = sorted(runs, key=lambda run: (run.title, run.seed))
    return [(title, list(same)) for title, same in groupby(ordered, key=lambda run: run.title)]
