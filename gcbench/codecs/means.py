"""Means, norms and standard deviations over the last dimension, each row reduced by itself.

PyTorch splits one long sum over threads, but not several sums: the last bits of a row's mean would
depend on how many rows this process holds, and real and virtual workers would send different
scales.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gcbench.codecs.kernels import summing_kernel


def mean_magnitude(x: Tensor) -> Tensor:
    """Return the mean of |x| of each row, `[w, ..., n] -> [w, ...]`."""
    return _by_row(_mean_of_magnitudes, x)


def root_mean_square(x: Tensor) -> Tensor:
    """Return the 2-norm of each row over sqrt(n), `[w, ..., n] -> [w, ...]`."""
    return _by_row(_root_mean_square, x)


def mean_where(x: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of each row's chosen values, `[w, ..., n] -> [w, ...]`; 0 without any."""
    total = _by_row(_sum, torch.where(chosen, x, 0))
    return total / chosen.sum(-1).clamp_min(1)


def norm(x: Tensor) -> Tensor:
    """Return the 2-norm of each row, `[w, n] -> [w]` float64.

    In float64, no square of a float32 overflows or underflows.
    """
    return _by_row(_norm, x)


def standard_deviation(x: Tensor) -> Tensor:
    """Return the standard deviation (divided by n) of each row, `[w, n] -> [w]` float64.

    It is 0 where all values are equal.
    """
    return _by_row(_deviation, x)


def _norm(row: Tensor) -> Tensor:
    return torch.linalg.vector_norm(row, dtype=torch.float64)


def _deviation(row: Tensor) -> Tensor:
    return row.double().std(correction=0)


@summing_kernel
def _mean_of_magnitudes(row: Tensor) -> Tensor:
    return row.abs().mean(-1)


@summing_kernel
def _root_mean_square(row: Tensor) -> Tensor:
    # In float64, no square of a float32 overflows or underflows.
    return row.double().square().mean(-1).sqrt().to(row.dtype)


@summing_kernel
def _sum(row: Tensor) -> Tensor:
    return row.sum(-1)


def _by_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if len(x) == 1:  # a single row needs no copy
        return function(x[0]).unsqueeze(0)
    return torch.stack([function(row) for row in x])
