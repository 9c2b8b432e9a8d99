"""Levels around a value and the probability of the upper one, by the papers' equations, float64.

Nothing here is shared with gcbench. `method_traces.py` makes traces of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from trace_recipes import BUCKET, Array, Code, gradients, signs


def evenly(count: int, norm: Callable[[Array], float] = lambda v: float(np.abs(v).max())) -> Code:
    """Return lower level, upper level and the probability of the upper of `count` even levels."""

    def code(v: Array) -> Array:
        m = norm(v)
        step = 2 * m / (count - 1)
        place = np.clip(np.floor((v + m) / step), 0, count - 2)
        lower = -m + place * step
        return np.stack([lower, lower + step, (v - lower) / step])

    return code


def between(levels_of: Code) -> Code:
    """Return both levels around each value and the probability of the upper, from a table."""

    def code(v: Array) -> Array:
        levels = levels_of(v)
        upper = np.clip(np.searchsorted(levels, v), 1, len(levels) - 1)
        low, high = levels[upper - 1], levels[upper]
        return np.stack([low, high, np.divide(v - low, high - low, where=high > low, out=v * 0)])

    return code


def orq_table(v: Array) -> Array:
    """Return five levels: of all values between two, the one of least error, in two rounds."""
    levels = np.array([v.min(), v.max()])
    for _ in range(2):
        middles = []
        for low, high in itertools.pairwise(levels):
            inside = v[(v >= low) & (v <= high)]
            errors = [
                np.where(inside < x, (inside - low) * (x - inside), (inside - x) * (high - inside))
                for x in inside
            ]
            middles.append(inside[np.argmin(np.sum(errors, axis=1))])
        levels = np.sort(np.append(levels, middles))
    return levels


def bingrad_pb(v: Array) -> Array:
    """b D = the sum of all |v| >= b, which falls in b: the crossing is a value, or between two."""
    magnitudes = np.sort(np.abs(v))
    crossings = [magnitudes[magnitudes >= x].sum() / len(v) for x in magnitudes]
    candidates = np.concatenate([magnitudes, crossings])

    def error(b: float) -> float:
        inside = np.abs(v) < b
        return float((b**2 - v**2)[inside].sum() + ((np.abs(v) - b)[~inside] ** 2).sum())

    b = min(candidates, key=error)
    return np.stack([v * 0 - b, v * 0 + b, np.clip((v + b) / (2 * b), 0, 1)])


def powers_of_two(v: Array) -> Array:
    low = 2.0 ** np.floor(np.log2(np.abs(v)))
    up = np.abs(v) / low - 1  # the mantissa
    ends = np.stack([signs(v) * low, signs(v) * 2 * low])
    return np.stack([ends.min(0), ends.max(0), np.where(v > 0, up, 1 - up)])


def multi_scale(v: Array) -> Array:
    """Scales 2^2 and 2^6: the finer one where its code is at most 2^2."""
    m = np.abs(v).max()
    s = np.where(64 * np.abs(v) <= 4 * m, 64, 4)
    lower = np.floor(v / m * s) / s * m
    return np.stack([lower, lower + m / s, (v - lower) * s / m])


def clipped(code: Code, deviations: float) -> Code:
    return lambda v: code(np.clip(v, -deviations * v.std(), deviations * v.std()))


def levels(code: Code, size: int = BUCKET, whole: bool = False) -> list[list[float]]:
    """Return what `code` says of the first worker's first gradient, by value."""
    first = [x.ravel() for x in gradients(0)[0].values()]
    parts = [np.concatenate(first)] if whole else first
    found = [code(x[i : i + size]) for x in parts for i in range(0, len(x), size)]
    return [[float(f"{x:.7g}") for x in value] for value in np.concatenate(found, axis=1).T]
