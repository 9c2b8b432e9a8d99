"""The learning rates that a row of a table was tried with, and which one is reported.

`gcbench tune` chooses by the same functions, also among the values of another key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from gcbench.identity import Differences
from gcbench.records.store import RecordedRun, newest
from gcbench.report.configs import Composition
from gcbench.report.measures import measure_by_seed
from gcbench.report.tables import Column

RATE = "optimizer.lr"
SPLIT = "dataset.split"  # the part of the data on which a run is tested
VALID = "valid"


class Rate(NamedTuple):
    """One learning rate of a grid, or one value of another key that `gcbench tune` tries."""

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
