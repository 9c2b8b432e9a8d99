"""Means, norms and deviations of rows or buckets, and stochastic rounding to a grid of levels.

On a CPU sums are added in float64 and in a fixed order, so that native code gets the same bits, and
a row's do not depend on how many rows or threads a process has: PyTorch splits one long sum over
threads, but not several sums. A GPU adds in its own order, over all buckets at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.codecs.fused import clip_fused
from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.launches import is_fused

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


@kernel
def mean_magnitude(x: Tensor) -> Tensor:
    """Return the mean of |x| of each row, `[..., n] -> [...]`."""
    return (fixed_sum(x.abs()) / x.shape[-1]).to(x.dtype)


@kernel
def root_mean_square(x: Tensor) -> Tensor:
    """Return the 2-norm of each row over sqrt(n), `[..., n] -> [...]`."""
    return (sum_of_squares(x) / x.shape[-1]).sqrt().to(x.dtype)


def two_norm(x: Tensor) -> Tensor:
    """Return the 2-norm of each row, `[..., n] -> [...]`."""
    return sum_of_squares(x).sqrt().to(x.dtype)


def mean_where(x: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of each row's chosen values, `[..., n] -> [...]`; 0 without any."""
    total = fixed_sum(torch.where(chosen, x, 0))
    return (total / chosen.sum(-1).clamp_min(1)).to(x.dtype)


def sum_of_squares(x: Tensor) -> Tensor:
    """Return the sum of the squares of each row, float64 `[..., n] -> [...]`."""
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
    total, squares = _add_pairs(torch.stack(each, dim=-1)).unbind(0)
    return deviation(total, squares, x.shape[1])


def shifted(x: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    """Return x - by and its square, float64."""
    difference = x.double() - by.double()
    return difference, difference.square()


def deviation(total: Tensor, squares: Tensor, n: Tensor | int) -> Tensor:
    """Return the standard deviation of n values, from sums of `shifted` ones."""
    return (squares / n - (total / n).square()).clamp_min(0).sqrt()


Norm = Literal["linf", "l2"]


@kernel
def max_norm(x: Tensor) -> Tensor:
    """Return the largest magnitude along the last dimension."""
    return x.abs().amax(-1)


def l2_norm(x: Tensor) -> Tensor:
    """Return the 2-norm along the last dimension, never below the largest magnitude."""
    return torch.maximum(two_norm(x), max_norm(x))


NORMS = {"linf": max_norm, "l2": l2_norm}


def stochastic_round(x: Tensor, noise: Tensor) -> Tensor:
    """Return x rounded up with the probability of its fraction, else down, so that E = x.

    Integers are unchanged. `noise` is uniform in [0, 1).
    """
    low = x.floor()
    return low.add_(noise < x - low)


_ONE = 1 << 23  # a grid step in fixed point; with it, 8-bit codes fill an int32


def grid_codes(v: Tensor, scale: Tensor, highest: int, words: Tensor) -> Tensor:
    """Return int32 codes 0 to `highest` <= 255 with E[code] = (v / scale + 1) highest / 2.

    |v| must not exceed `scale`.

    The code is the integer part of the place on the grid plus a draw from [0, 1), in fixed point.
    For a scale of zero it is arbitrary. Dividing by the scale first keeps |v| / scale <= 1 exactly,
    even for denormals. A NaN may get any code, but the code must be in range, as its neighbors
    share its words.
    """
    end = highest * (_ONE // 2)
    place = (v / torch.where(scale > 0, scale, 1) * float(end)).to(torch.int32).clamp(-end, end)
    return (place + (words >> 9) + (end + _ONE // 2)) >> 23


def grid_values(centered: Tensor, scale: Tensor, highest: int) -> Tensor:
    """Return the values of codes minus `highest / 2`, or of sums of such codes.

    The lowest and the highest code give exactly -scale and scale.
    """
    return centered.to(torch.float32) / (highest / 2) * scale


def clip(tensors: Sequence[Tensor], deviations: float) -> list[Tensor]:
    """Return tensors `[w, n]` clipped to so many standard deviations of each, if that is not 0.

    Hand-written Triton clips all of them at once.
    """
    if is_fused(tensors[0]):
        return clip_fused(tensors, deviations)
    sigmas = [standard_deviation(x).unsqueeze(1) for x in tensors]
    each = [(x, _limits(sigma, deviations)) for x, sigma in zip(tensors, sigmas, strict=True)]
    return [x.clamp(-limit, limit) for x, limit in each]


def _limits(sigma: Tensor, deviations: float) -> Tensor:
    return torch.where(sigma == 0, torch.inf, deviations * sigma).float()
