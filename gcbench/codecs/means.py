"""Means, norms and standard deviations over the last dimension, each row reduced by itself.

On a CPU sums are added in float64 and in a fixed order, so that native code gets the same bits, and
a row's do not depend on how many rows or threads a process has: PyTorch splits one long sum over
threads, but not several sums. A GPU adds in its own order.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LANES, BLOCK = 32, 512
_TOGETHER = BLOCK << 11  # values in float64 at once; the sum of as many blocks is a subtree


def fixed_sum(x: Tensor) -> Tensor:
    """Return sums over the last dimension, float64, in the order of `Tree` in fits.h.

    Blocks of 512 values are added in 32 lanes, these by halves, and the sums of blocks by pairs of
    neighbors.
    """
    if not x.is_cpu:
        return x.sum(-1, dtype=torch.float64)
    n = x.shape[-1]
    size = BLOCK if n > BLOCK else LANES * -(-n // LANES)
    blocks = F.pad(x, (0, -n % size)).unflatten(-1, (-1, size // LANES, LANES))
    sums = torch.zeros(*blocks.shape[:-2], LANES, dtype=torch.float64)
    for lane in blocks.unbind(-2):
        sums += lane
    while sums.shape[-1] > 1:
        sums = sums[..., : sums.shape[-1] // 2] + sums[..., sums.shape[-1] // 2 :]
    return _add_pairs(sums.squeeze(-1))


def _add_pairs(sums: Tensor) -> Tensor:
    while sums.shape[-1] > 1:
        sums = F.pad(sums, (0, sums.shape[-1] % 2))
        sums = sums[..., ::2] + sums[..., 1::2]
    return sums.squeeze(-1)


def mean_magnitude(x: Tensor, d: Tensor | None = None) -> Tensor:
    """Return the mean of |x| of each row, `[..., n] -> [...]`, or of d values and zeros behind."""
    return (fixed_sum(x.abs()) / (x.shape[-1] if d is None else d)).to(x.dtype)


def root_mean_square(x: Tensor, d: Tensor | None = None) -> Tensor:
    """Return the 2-norm of each row over sqrt(n), `[..., n] -> [...]`, or over sqrt(d)."""
    return (_sum_of_squares(x) / (x.shape[-1] if d is None else d)).sqrt().to(x.dtype)


def two_norm(x: Tensor) -> Tensor:
    """Return the 2-norm of each row, `[..., n] -> [...]`."""
    return _sum_of_squares(x).sqrt().to(x.dtype)


def inside(x: Tensor, d: Tensor | None) -> Tensor:
    """Return which values of padded rows count: the first d `[...]` of each; None: all."""
    if d is None:
        return torch.ones_like(x, dtype=torch.bool)
    return torch.arange(x.shape[-1], device=x.device) < d.unsqueeze(-1)


def mean_where(x: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of each row's chosen values, `[..., n] -> [...]`; 0 without any."""
    total = fixed_sum(torch.where(chosen, x, 0))
    return (total / chosen.sum(-1).clamp_min(1)).to(x.dtype)


def _sum_of_squares(x: Tensor) -> Tensor:
    # In float64, no square of a float32 overflows or underflows.
    return fixed_sum(x.double().square())


def norm(x: Tensor) -> Tensor:
    """Return the 2-norm of each row, `[w, n] -> [w]` float64.

    In float64, no square of a float32 overflows or underflows.
    """
    return torch.stack([torch.linalg.vector_norm(row, dtype=torch.float64) for row in x])


def standard_deviation(x: Tensor) -> Tensor:
    """Return the standard deviation (divided by n) of each row, `[w, n] -> [w]` float64.

    It is 0 where all values are equal, as sums are of differences from the first one.
    """
    parts = x.split(_TOGETHER, dim=1)
    each = [torch.stack(list(map(fixed_sum, shifted(part, x[:, :1])))) for part in parts]
    return deviation(*_add_pairs(torch.stack(each, dim=-1)), x.shape[1])


def shifted(x: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    """Return x - by and its square, float64."""
    difference = x.double() - by.double()
    return difference, difference.square()


def deviation(total: Tensor, squares: Tensor, n: Tensor | int) -> Tensor:
    """Return the standard deviation of n values, from sums of `shifted` ones."""
    return (squares / n - (total / n).square()).clamp_min(0).sqrt()
