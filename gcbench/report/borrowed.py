"""Runs of other experiments that are a row's own: tables share rows, and nobody computes them twice."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from gcbench.config import Config, conf_directory
from gcbench.config.names import EXECUTION, WHOLE
from gcbench.report.configs import Composed, as_words, composed, difference
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
    """Return the configuration of its experiment's file: what was typed beside it would have been typed beside the row, too.

    Not so its backend, by which rows of one experiment may differ.
    """
    if not _has_file(run):
        return run.config
    config = composed(str(run.experiment), run.budget).config
    return {**config, "trainer": {**config["trainer"], "backend": run.config["trainer"]["backend"]}}


def _has_file(run: Run) -> bool:
    file = conf_directory() / "experiment" / f"{run.experiment}.yaml"
    return run.experiment is not None and file.is_file()


def words_of_run(run: Run) -> list[str]:
    """Return what was typed beside the run's experiment, by where it differs from that."""
    if not _has_file(run):
        return []
    return as_words(difference(run.flat, composed(str(run.experiment), run.budget).flat))


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
