"""The levels of least mean squared error for values of the standard normal law."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]


@cache
def normal_levels(bits: int) -> tuple[float, ...]:
    """Return 2^bits levels, ascending, of least mean squared error (Max 1960, Lloyd 1982).

    A level q_i is the mean of the values that are nearer to it than to others:

        q_i = E[z | t_(i-1) < z < t_i],    t_i = (q_i + q_(i+1)) / 2,    z ~ N(0, 1)

    With phi and Phi, the density and the distribution function, this is (phi(t_(i-1)) - phi(t_i)) /
    (Phi(t_i) - Phi(t_(i-1))). The levels above 0, which are the opposites of the others, are found
    by Newton's method in float64, from the quantiles of a normal law with a variance of 3, whose
    density is proportional to phi^(1/3) as that of many levels is (Panter and Dite 1951).
    """
    count = 1 << (bits - 1)
    from scipy.special import ndtri  # of NumPy, as a step that is only observed has no values

    q = ndtri((np.arange(count) + count + 0.5) / (2 * count)) * math.sqrt(3)
    for _ in range(100):
        error, slopes = _off_means(q)
        change = np.linalg.solve(slopes, error)
        while (np.diff(q - change, prepend=0) <= 0).any():  # keeps the levels in order
            change /= 2
        q = q - change
        if np.abs(change).max() < 1e-14:
            break
    return (*(-q[::-1]).tolist(), *q.tolist())


def _off_means(q: Floats) -> tuple[Floats, Floats]:
    """Return levels above 0 minus the means of their cells, and the derivatives by all levels."""
    from scipy.special import erfc

    ends = np.concatenate([[0], (q[1:] + q[:-1]) / 2, [np.inf]])
    below, above = ends[:-1], ends[1:]
    density = np.exp(-(ends**2) / 2) / math.sqrt(2 * math.pi)
    tails = erfc(ends / math.sqrt(2)) / 2
    share = tails[:-1] - tails[1:]
    mean = (density[:-1] - density[1:]) / share
    by_below = density[:-1] * (mean - below) / share
    by_above = density[1:] * (np.where(np.isinf(above), 0, above) - mean) / share
    by_below[0] = 0  # the end at 0 does not move
    own = 1 - (by_below + by_above) / 2
    slopes = np.diag(own) - np.diag(by_above[:-1] / 2, 1) - np.diag(by_below[1:] / 2, -1)
    return q - mean, slopes


@cache
def rounded_levels(bits: int) -> list[list[float]]:
    """Return the levels, and the places halfway between them, as float32 has them."""
    levels = normal_levels(bits)
    halfway = [(low + high) / 2 for low, high in pairwise(levels)]
    return [np.asarray(x, np.float32).tolist() for x in (levels, halfway)]


@cache
def level_table(bits: int) -> Tensor:
    """Return these levels, and then these places, as one tensor on the CPU."""
    levels, halfway = rounded_levels(bits)
    return torch.tensor([*levels, *halfway], dtype=torch.float32)
