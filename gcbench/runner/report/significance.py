"""Tests of differences between rows, whose seeds are independent runs of the same configuration.

A row's mean over n seeds has the standard error s / sqrt(n). With two or three seeds a row's own
standard deviation says little, so that s is pooled over the rows of a table, unless Bartlett's test
finds that these differ; then each row has its own (Welch's test). Levene's test, in its usual form,
cannot reject with three seeds, whatever the deviations. Rows are compared seed by seed only where
the rows of a table have good and bad seeds in common: where their intraclass correlation is above
0.3 by more than chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, variance
from typing import NamedTuple

BySeed = Mapping[int, float]

LEVEL = 0.05
CORRELATED = 0.3  # the correlation of seeds above which rows are compared seed by seed


class Error(NamedTuple):
    """The standard error of a combination of means, and its degrees of freedom."""

    standard: float
    freedom: float

    def p_above(self, margin: float) -> float:
        """Return the probability of a margin as large as this one if the true one is zero."""
        from scipy.special import stdtr  # imported here, as it would slow down --help

        if self.standard == 0:
            return 0.0 if margin > 0 else 1.0
        return float(stdtr(self.freedom, -margin / self.standard))

    def half_width(self) -> float:
        """Return half of the two-sided 95 % interval."""
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, 1 - LEVEL / 2)) * self.standard


class Noise:
    """How much the runs of rows of one table differ by their seeds."""

    def __init__(self, rows: Sequence[BySeed]) -> None:
        finite = [r for r in rows if len(r) > 1 and all(map(math.isfinite, r.values()))]
        self.freedom = sum(len(row) - 1 for row in finite)
        squares = sum(variance(row.values()) * (len(row) - 1) for row in finite)
        self.variance = squares / self.freedom if self.freedom else math.nan
        self.equal = _have_equal_variances(finite)
        self.paired = _paired_error(finite)

    def error(self, rows: Mapping[str, BySeed], weights: Mapping[str, float]) -> Error | None:
        """Return the error of the weighted sum of the means of `rows`; None if it is not known."""
        used = {name: rows[name] for name, weight in weights.items() if weight}
        counts = {name: len(row) for name, row in used.items()}
        scale = sum(weights[name] ** 2 / n for name, n in counts.items())
        if self.paired and _share_seeds(used.values()) and abs(sum(weights.values())) < 1e-9:
            return Error(self.paired.standard * math.sqrt(scale), self.paired.freedom)
        if self.equal:
            return Error(math.sqrt(self.variance * scale), self.freedom) if self.freedom else None
        if min(counts.values()) < 2:
            return None
        parts = [
            (weights[name] ** 2 * variance(row.values()) / len(row), len(row) - 1)
            for name, row in used.items()
        ]
        total = sum(part for part, _ in parts)
        below = sum(part**2 / freedom for part, freedom in parts)
        return Error(math.sqrt(total), total**2 / below if below else math.inf)


def _share_seeds(rows: Iterable[BySeed]) -> bool:
    return len({frozenset(row) for row in rows}) == 1


def _have_equal_variances(rows: Sequence[BySeed]) -> bool:
    """Return whether Bartlett's test leaves open that all rows have the same variance."""
    from scipy.stats import bartlett

    several = [list(row.values()) for row in rows]
    if len(several) < 2:
        return True
    if not all(variance(row) for row in several):
        return not any(variance(row) for row in several)
    return float(bartlett(*several).pvalue) >= LEVEL


def _paired_error(rows: Sequence[BySeed]) -> Error | None:
    """Return the deviation within rows after removing what all rows of a seed have in common.

    None unless seeds are correlated: above `CORRELATED`, and by more than chance.
    """
    from scipy.special import fdtrc

    if len(rows) < 2:
        return None
    seeds = sorted(set.intersection(*(set(row) for row in rows)))
    if len(seeds) < 3:
        return None
    of_rows = [fmean(row[seed] for seed in seeds) for row in rows]
    of_seeds = [fmean(row[seed] for row in rows) for seed in seeds]
    mean = fmean(of_seeds)
    rest = sum(
        (row[seed] - of_row - of_seed + mean) ** 2
        for row, of_row in zip(rows, of_rows, strict=True)
        for seed, of_seed in zip(seeds, of_seeds, strict=True)
    )
    freedom = (len(rows) - 1) * (len(seeds) - 1)
    within, between = rest / freedom, len(rows) * variance(of_seeds)
    if within == 0:
        return None
    correlation = (between - within) / (between + (len(rows) - 1) * within)
    by_chance = float(fdtrc(len(seeds) - 1, freedom, between / within))
    if correlation <= CORRELATED or by_chance >= LEVEL:
        return None
    return Error(math.sqrt(within), freedom)


def power_of_bound(bound: float, error: Error, both_sides: bool) -> float:
    """Return how likely a test shows that equal means differ by less than a bound.

    `both_sides`: in both directions, by two one-sided t tests at `LEVEL` (Schuirmann 1987); else
    that one of them is not lower by the bound or more, by a two-sided test.
    """
    import numpy as np
    from scipy.special import chdtri, ndtr, stdtrit

    if error.standard == 0:
        return 1.0 if bound > 0 else 0.0
    # The deviation that is found, over the true one, at 1,000 equally likely quantiles.
    quantiles = (np.arange(1000) + 0.5) / 1000
    found = np.sqrt(chdtri(error.freedom, quantiles) / error.freedom)
    quantile = stdtrit(error.freedom, 1 - (LEVEL if both_sides else LEVEL / 2))
    within = ndtr(bound / error.standard - quantile * found)
    return float(np.mean(np.maximum(2 * within - 1, 0) if both_sides else within))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted by Holm (1979), so that `LEVEL` bounds the chance of any error."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
