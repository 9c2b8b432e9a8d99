"""How far rows end behind the row without compression, and how that gap falls with the steps.

An interval says more than a verdict, as rows have too few seeds to show that a gap is small. That
two rows are equal is said only where their seeds have a power above 0.8 to show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from gcbench.papers.claims.relations import Relation
from gcbench.runner.report.significance import BySeed, Error, Noise, power_of_bound

POWER = 0.8  # above which an equality may be shown
SEEDS = 2  # of each row, from which there is an interval
LENGTHS = 3  # of training, from which there is a law


class Gap(NamedTuple):
    """How far a row's mean ends behind that of the row without compression."""

    mean: float  # negative if it ends ahead
    error: Error

    @property
    def text(self) -> str:
        """Return for example `2.56 [2.25, 2.87]`, or `-0.10 [-0.41, 0.21]`."""
        return describe_interval(self.mean, self.error.half_width())


def describe_interval(mean: float, half: float) -> str:
    """Return a mean with its interval, to two digits of half of it, six decimals at most."""
    digits = min(6, max(0, 1 - math.floor(math.log10(half)))) if half > 0 else 2
    numbers = (round(x, digits) + 0.0 for x in (mean, mean - half, mean + half))  # no -0
    middle, low, high = (f"{x:.{digits}f}" for x in numbers)
    return f"{middle} [{low}, {high}]"


class Scores(NamedTuple):
    """The scores of rows, and their noise by that of all rows of the table."""

    by_row: Mapping[str, BySeed]
    noise: Noise


class Recovery(NamedTuple):
    """A row beside the one without compression, and how far behind it may be."""

    row: str
    dense: str
    gap: Gap
    equal: bool  # whether it may not be as far ahead, either
    tolerance: float
    power: float  # of showing that it is within the tolerance, if it is equal
    of_loss: Gap | None  # the same of the test loss, the second measure

    @property
    def margin(self) -> float:
        """Return by how much the gap is within the tolerance."""
        return self.tolerance - (abs(self.gap.mean) if self.equal else self.gap.mean)

    @property
    def text(self) -> str:
        """Return for example `rank_2 ends 2.56 [2.25, 2.87] behind sgd where 0.3 is allowed`."""
        row, dense = short(self.row, self.dense)
        gap, side, allowed = self.gap, "behind", f"{self.tolerance:.3g}"
        if gap.mean < 0:
            gap, side = gap._replace(mean=-gap.mean), "ahead of"
            allowed += "" if self.equal else " behind"
        loss = f" (test loss {self.of_loss.text})" if self.of_loss else ""
        return f"{row} ends {gap.text} {side} {dense} where {allowed} is allowed{loss}"


def short(row: str, dense: str) -> tuple[str, str]:
    """Return two paths without the folder that they share."""
    folder, _, name = row.rpartition("/")
    other_folder, _, other = dense.rpartition("/")
    if folder == other_folder:
        return name, other
    return f"{folder.rpartition('/')[2]}/{name}", f"{other_folder.rpartition('/')[2]}/{other}"


def find_recovery(
    relation: Relation,
    dense: str,
    scores: Scores,
    low_is_better: bool,
    losses: Scores | None,
) -> Recovery | None:
    """Return how far a relation's row ends behind its row without compression.

    None if one of the two has fewer than two seeds, or a seed without a finite score.
    """
    (row,) = set(relation.names) - {dense}
    gap = _gap(row, dense, scores, low_is_better)
    if gap is None:
        return None
    equal = dict.fromkeys(relation.names, fmean(scores.by_row[dense].values()))
    is_equality = relation.sign == "=="
    tolerance = relation.within if is_equality else relation.difference(equal)
    return Recovery(
        row,
        dense,
        gap,
        is_equality,
        tolerance,
        power_of_bound(tolerance, gap.error, is_equality),
        _gap(row, dense, losses, True) if losses else None,
    )


def _gap(row: str, dense: str, scores: Scores, low_is_better: bool) -> Gap | None:
    rows = {name: scores.by_row.get(name, {}) for name in (row, dense)}
    values = [value for seeds in rows.values() for value in seeds.values()]
    if min(map(len, rows.values())) < SEEDS or not all(map(math.isfinite, values)):
        return None
    sign = 1.0 if low_is_better else -1.0
    error = scores.noise.error(rows, {row: sign, dense: -sign})
    behind = sign * (fmean(rows[row].values()) - fmean(rows[dense].values()))
    return Gap(behind, error) if error else None


class Length(NamedTuple):
    """The scores of a row and of the one without compression after so many steps."""

    network: str  # which a law should have in common
    steps: int
    row: BySeed
    dense: BySeed


def _of_one_network(lengths: Sequence[Length]) -> list[Length]:
    """Return the lengths of the network that has most of them, if it has enough; else all."""
    by_network: dict[str, list[Length]] = {}
    for length in lengths:
        by_network.setdefault(length.network, []).append(length)
    most = max(by_network.values(), key=len, default=[])
    return most if len(most) >= LENGTHS else list(lengths)


class Law(NamedTuple):
    """A gap that follows steps^-p."""

    power: float  # p
    half: float  # of its 95 % interval
    first: int
    last: int
    networks: int

    @property
    def text(self) -> str:
        """Return for example `the gap falls as steps^-p, p = 0.9 [0.7, 1.1], from ...`."""
        interval = describe_interval(self.power, self.half)
        steps = f"from {self.first:,} to {self.last:,} steps"
        of = f" of {self.networks} networks" if self.networks > 1 else ""
        return f"the gap falls as steps^-p, p = {interval}, {steps}{of}"


def fit_law(lengths: Sequence[Length], low_is_better: bool) -> Law | None:
    """Return log(gap) = log C - p log(steps), fitted with weights from the seeds of all lengths.

    It is of the network that has most lengths, if they are enough. Its interval is wider by what
    the points miss the line by more than seeds explain. None with fewer than three lengths, or if
    a gap is not above its standard error.
    """
    noise = Noise([by_seed for length in lengths for by_seed in (length.row, length.dense)])
    lengths = _of_one_network(lengths)
    if len({length.steps for length in lengths}) < LENGTHS or not noise.freedom:
        return None
    sign = 1.0 if low_is_better else -1.0
    points = []
    for length in lengths:
        gap = sign * (fmean(length.row.values()) - fmean(length.dense.values()))
        standard = math.sqrt(noise.variance * (1 / len(length.row) + 1 / len(length.dense)))
        if not math.isfinite(gap) or gap <= standard:
            return None  # its logarithm has no error of first order
        points.append((math.log(length.steps), math.log(gap), (gap / standard) ** 2))
    total = sum(weight for _, _, weight in points)
    x_mean = sum(x * weight for x, _, weight in points) / total
    y_mean = sum(y * weight for _, y, weight in points) / total
    spread = sum(weight * (x - x_mean) ** 2 for x, _, weight in points)
    slope = sum(weight * (x - x_mean) * (y - y_mean) for x, y, weight in points) / spread
    missed = sum(w * (y - y_mean - slope * (x - x_mean)) ** 2 for x, y, w in points)
    wider = math.sqrt(max(1.0, missed / (len(points) - 2)))
    half = Error(wider / math.sqrt(spread), noise.freedom).half_width()
    steps = [length.steps for length in lengths]
    networks = {length.network for length in lengths}
    return Law(-slope, half, min(steps), max(steps), len(networks))
