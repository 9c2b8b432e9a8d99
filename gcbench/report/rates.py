"""The learning rates that a row of a table was tried with, and which one is reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from gcbench.identity import Differences, flat_differences
from gcbench.records.store import RecordedRun, newest
from gcbench.report.configs import Composition
from gcbench.report.measures import measure_by_seed
from gcbench.report.tables import Column, lower_is_better

RATE = "optimizer.lr"
SPLIT = "dataset.split"


class Rate(NamedTuple):
    """One learning rate of a grid."""

    lr: float
    scores: dict[int, float]  # by seed; empty: none was done, or one diverged
    runs: list[RecordedRun]

    @property
    def score(self) -> float | None:
        """Return the mean over seeds, or None without any."""
        return fmean(self.scores.values()) if self.scores else None


@dataclass(frozen=True)
class Grid:
    """Learning rates that were tried, and by what the reported one was chosen."""

    rates: list[Rate]
    split: str  # of the data that chose
    validated: bool  # that data is not what is reported
    measure: str
    chosen: float | None  # None: no rate ended well with all its seeds
    reported: list[RecordedRun]  # one a seed; empty: the chosen rate has not run on the test split
    duplicates: list[RecordedRun]

    @property
    def runs(self) -> list[RecordedRun]:
        return [
            *(run for rate in self.rates for run in rate.runs),
            *self.reported,
            *self.duplicates,
        ]


def is_swept(differs: Differences) -> bool:
    """Return whether a run differs from a row in its rate, or in what data it is scored by, too."""
    return set(differs) == {RATE} or (set(differs) <= {RATE, SPLIT} and _is_validation(differs))


def find_grid(
    exact: list[RecordedRun], swept: list[RecordedRun], expected: Composition, chooser: Column
) -> Grid | None:
    """Return the learning rates that were tried; None for one only."""
    by_rate: dict[tuple[bool, float], list[RecordedRun]] = {}
    for run in [*exact, *swept]:
        validation = _is_validation(flat_differences(run.flat, expected.flat))
        by_rate.setdefault((validation, run.flat[RATE]), []).append(run)
    validated = len([lr for validation, lr in by_rate if validation]) > 1
    if len([lr for validation, lr in by_rate if validation == validated]) < 2:
        return None
    kept = {key: newest(runs) for key, runs in by_rate.items()}
    rates = [
        _rate(lr, runs, chooser)
        for (validation, lr), (runs, _) in sorted(kept.items())
        if validation == validated
    ]
    chosen = _best(rates, lower_is_better(chooser))
    reported, _ = kept.get((False, expected.flat[RATE] if chosen is None else chosen), ([], []))
    duplicates = [run for _, older in kept.values() for run in older]
    split = "valid" if validated else expected.flat.get(SPLIT, "test")
    return Grid(rates, split, validated, str(chooser.measure), chosen, reported, duplicates)


def _rate(lr: float, runs: list[RecordedRun], chooser: Column) -> Rate:
    done = [run for run in runs if run.done]
    scores = measure_by_seed(str(chooser.measure), done, **chooser.settings)
    return Rate(lr, scores if len(scores) == len(runs) else {}, runs)


def _best(rates: Iterable[Rate], lower: bool) -> float | None:
    """Return the learning rate that gains most over the one with the most seeds.

    Gains are those on the seeds of both, so that one lucky seed does not win against a mean.
    """
    known = [rate for rate in rates if rate.scores]
    if not known:
        return None
    reference = max(known, key=lambda rate: len(rate.scores))
    best = min if lower else max
    return best(known, key=lambda rate: _gain(rate, reference)).lr


def _gain(rate: Rate, reference: Rate) -> float:
    """Return how much higher a rate scores in the mean of the seeds of both, or of all seeds."""
    shared = rate.scores.keys() & reference.scores.keys()
    a, b = (fmean(one.scores[seed] for seed in shared or one.scores) for one in (rate, reference))
    return a - b


def _is_validation(differs: Differences) -> bool:
    """Return whether the score is of held-out training samples, where the row's is of the test."""
    return SPLIT in differs and differs[SPLIT][0] == "valid"
