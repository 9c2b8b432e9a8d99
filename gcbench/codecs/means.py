"""Means over the last dimension, each row reduced by itself.

torch splits one long sum over threads but not several, so that a row's mean would depend in its last bits on how many rows
this process holds: real and virtual workers would send different scales.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def mean_magnitude(x: Tensor) -> Tensor:
    """`[w, ..., n] -> [w, ...]`, the mean of |x|."""
    return _by_row(lambda row: row.abs().mean(-1), x)


def mean_where(x: Tensor, chosen: Tensor) -> Tensor:
    """`[w, ..., n] -> [w, ...]`, the mean of the chosen values; 0 where none is."""
    total = _by_row(lambda row: row.sum(-1), torch.where(chosen, x, 0))
    return total / chosen.sum(-1).clamp_min(1)


def _by_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.stack([function(row) for row in x])
