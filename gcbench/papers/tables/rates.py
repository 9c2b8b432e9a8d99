"""Which runs count for a row: those of the best learning rate, and those of other experiments.

`gcbench papers tune` chooses by the same functions, also among the values of another key. Rows
that tables share need to run only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from gcbench.core.conf import Config
from gcbench.papers.tables.configs import Composition, compose
from gcbench.papers.tables.tables import Column, TableRow, overrides_of
from gcbench.runner.config.budget import PAPER
from gcbench.runner.config.choices import row_names
from gcbench.runner.differences import Differences, as_overrides, flat_differences
from gcbench.runner.identity import EXECUTION, Flat, finite
from gcbench.runner.records.store import RecordedRun, newest
from gcbench.runner.report.measures import SPLIT, VALID, measure_by_seed

RATE = "optimizer.lr"
# Classes that no budget replaces.
LASTING = {"compressor._target_", "compressor.method._target_", "dataset._target_"}


class Rate(NamedTuple):
    """One learning rate of a grid, or one value of another key that `gcbench papers tune` tries."""

    lr: float
    scores: dict[int, float]  # by seed; empty unless every run was done and has a score
    runs: list[RecordedRun]

    @property
    def score(self) -> float | None:
        """Return the mean over seeds; None without scores."""
        return fmean(self.scores.values()) if self.scores else None


@dataclass(frozen=True)
class Grid:
    """Learning rates that were tried, and how the reported one was chosen."""

    rates: list[Rate]
    split: str  # the data on which it was chosen
    validated: bool  # whether that data is not the data of the reported scores
    measure: str
    chosen: float | None  # None if no rate ended well with all its seeds
    # One run per seed; empty if the chosen rate has not run on the row's own split.
    reported: list[RecordedRun]
    duplicates: list[RecordedRun]  # older runs of the same seed and rate

    @property
    def tries(self) -> int:
        """Return the number of runs among which the reported rate was chosen."""
        return sum(len(rate.runs) for rate in self.rates)

    @property
    def runs(self) -> list[RecordedRun]:
        return [
            *(run for rate in self.rates for run in rate.runs),
            *self.reported,
            *self.duplicates,
        ]


def can_run(
    row: TableRow, budget: str, runs: Sequence[RecordedRun], overrides: tuple[str, ...]
) -> bool:
    """Return whether the row may have one of these runs at a budget, for which it is not composed.

    They are runs of its experiment, or agree with it in what no budget changes.
    """
    experiments, lasting = _kinds(tuple(runs))
    if row.experiment in experiments or not runs:
        return bool(runs)
    typed = (*overrides_of({**row.settings, **row.at.get(budget, {})}), *overrides)
    return _lasting(compose(str(row.experiment), PAPER, typed).flat) in lasting


@cache
def _kinds(runs: tuple[RecordedRun, ...]) -> tuple[set[str | None], set[str]]:
    return {run.experiment for run in runs}, {_lasting(run.flat) for run in runs}


def _lasting(flat: Flat) -> str:
    """Return what no budget changes: the knobs of the method, its class, and that of the data."""
    return repr(
        sorted(
            (key, finite(value))
            for key, value in flat.items()
            if "." not in key or key in LASTING or key.startswith("estimator.")
        )
    )


def is_swept(differs: Differences, key: str = RATE) -> bool:
    """Return whether a run differs from a row only in its rate, the part it is tested on, or both.

    On its test part a row also runs if its data set is by default tested on the validation part.
    """
    return bool(differs) and set(differs) <= {key, SPLIT}


def find_grid(
    exact: list[RecordedRun],
    swept: list[RecordedRun],
    expected: Composition,
    chooser: Column,
    key: str = RATE,
) -> Grid | None:
    """Return the grid of the learning rates that were tried; None if that was only one.

    `exact` are the row's own runs, `swept` those with another rate or split. If several rates have
    validation scores, these choose the rate, and the runs on the test part are reported; if there
    are none, those on the validation part, where that is the row's own. Otherwise the reported
    scores choose.
    """
    by_rate: dict[tuple[bool, float], list[RecordedRun]] = {}
    for run in [*exact, *swept]:
        by_rate.setdefault((run.flat.get(SPLIT) == VALID, run.flat[key]), []).append(run)
    on_valid = len([lr for validation, lr in by_rate if validation]) > 1
    if len([lr for validation, lr in by_rate if validation == on_valid]) < 2:
        return None
    kept = {rate: newest(runs) for rate, runs in by_rate.items()}
    rates = [
        _rate(lr, runs, chooser)
        for (validation, lr), (runs, _) in sorted(kept.items())
        if validation == on_valid
    ]
    chosen = _best(rates, chooser.lower_is_better)
    value = expected.flat[key] if chosen is None else chosen
    tested, _ = kept.get((False, value), ([], []))
    validated = on_valid and bool(tested or expected.flat.get(SPLIT) != VALID)
    reported, _ = kept.get((on_valid and not validated, value), ([], []))
    duplicates = [run for _, older in kept.values() for run in older]
    split = VALID if on_valid else expected.flat.get(SPLIT, "test")
    return Grid(rates, split, validated, str(chooser.measure), chosen, reported, duplicates)


def _rate(lr: float, runs: list[RecordedRun], chooser: Column) -> Rate:
    done = [run for run in runs if run.done]
    scores = measure_by_seed(str(chooser.measure), done, **chooser.settings)
    return Rate(lr, scores if len(scores) == len(runs) else {}, runs)


def _best(rates: Iterable[Rate], lower: bool) -> float | None:
    """Return the learning rate with the best gain over the rate with the most seeds.

    A gain is taken over the seeds that both have, so that one lucky seed does not win against a
    mean.
    """
    known = [rate for rate in rates if rate.scores]
    if not known:
        return None
    reference = max(known, key=lambda rate: len(rate.scores))
    best = min if lower else max
    return best(known, key=lambda rate: _gain(rate, reference)).lr


def _gain(rate: Rate, reference: Rate) -> float:
    """Return how much higher a rate scores, as a mean over shared seeds or else over all seeds."""
    shared = rate.scores.keys() & reference.scores.keys()
    a, b = (fmean(one.scores[seed] for seed in shared or one.scores) for one in (rate, reference))
    return a - b


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
