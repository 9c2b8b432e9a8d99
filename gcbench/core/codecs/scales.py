"""Means, norms and deviations of rows or buckets, and stochastic rounding to a grid of levels.

On a CPU sums are added in float64 and in a fixed order, so that native code gets the same bits, and
a row's do not depend on how many rows or threads a process has: PyTorch splits one long sum over
threads, but not several sums. A GPU adds in its own order, over all buckets at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.codecs.buckets import Groups, Rows, buckets_of
from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.radix import to_words

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
    return (sum_of_squares(x) / (x.shape[-1] if d is None else d)).sqrt().to(x.dtype)


def two_norm(x: Tensor) -> Tensor:
    """Return the 2-norm of each row, `[..., n] -> [...]`."""
    return sum_of_squares(x).sqrt().to(x.dtype)


def inside(x: Tensor, d: Tensor | None) -> Tensor:
    """Return which values of padded rows count: the first d `[...]` of each; None: all."""
    if d is None:
        return torch.ones_like(x, dtype=torch.bool)
    return torch.arange(x.shape[-1], device=x.device) < d.unsqueeze(-1)


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


class Sides(NamedTuple):
    """Sums over the d values of each bucket, float64 `[w, buckets]`."""

    positive: Tensor  # the sum of those that are at least 0
    negative: Tensor  # the sum of the others
    nonnegative: Tensor  # how many are at least 0


def signs_and_sides(rows: Rows, groups: Groups) -> tuple[Tensor, Sides]:
    """Return the bits v >= 0 of groups of rows as words, and the sides of each bucket.

    Groups `[w, groups, 32, row]` become int32 words `[w, groups, 1, row]`, in the order of
    `to_words`. The sides include the values outside groups. A kernel sums rows; then follow the
    sums over buckets.
    """
    parts = [_signs_and_sums(matrix) for _, matrix in rows.matrices]
    workers = len(rows.rest)
    none = rows.rest.new_empty(workers, 0, rows.row, dtype=torch.int32)
    words = torch.cat([none, *(part[0] for part in parts)], dim=1)
    up = rows.rest >= 0
    of_rest = torch.stack([torch.where(up, rows.rest, 0), torch.where(up, 0, rows.rest), up])
    of_rows = [torch.stack(part[1:]).flatten(2) for part in parts]
    return words.unsqueeze(2), Sides(*_by_bucket([*of_rows, of_rest.double()], groups))


def _by_bucket(parts: Sequence[Tensor], groups: Groups) -> Tensor:
    """Return the sums `[k, w, buckets]` of k sums `[k, w, ...]` of rows, and of values outside."""
    items = torch.cat(list(parts), dim=2).permute(2, 0, 1)[groups.by_bucket]
    # `unsafe` skips a check of the lengths, for which the host would wait.
    sums = torch.segment_reduce(items, "sum", lengths=groups.bucket_lengths, unsafe=True)
    return sums.permute(1, 2, 0)


def clip(tensors: Sequence[Tensor], deviations: float) -> list[Tensor]:
    """Return tensors `[w, n]` clipped to so many standard deviations of each, if that is not 0.

    A GPU clips all of them at once.
    """
    if tensors[0].is_cpu:
        sigmas = [standard_deviation(x).unsqueeze(1) for x in tensors]
        each = [(x, _limits(sigma, deviations)) for x, sigma in zip(tensors, sigmas, strict=True)]
        return [x.clamp(-limit, limit) for x, limit in each]
    segments = tuple(x.shape[1] for x in tensors)
    buckets = buckets_of(segments, None, 1, tensors[0].device)
    rows, groups = buckets.take(tensors), buckets.groups
    first = torch.cat([x[:, :1] for x in tensors], dim=1)
    of_rows = [
        _sums_of_shifted(matrix, first[:, groups.buckets[place]]).flatten(2)
        for place, matrix in rows.matrices
    ]
    rest = _sums_of_shifted(rows.rest.unsqueeze(-1), first[:, groups.rest_buckets])
    sums = _by_bucket([*of_rows, rest], groups)
    limits, ends = _limits_of(sums, buckets.sizes, deviations), buckets.sizes.cumsum(0)
    return list(_clip(torch.cat(list(tensors), dim=1), limits, ends).split(segments, dim=1))


@kernel
def _sums_of_shifted(x: Tensor, first: Tensor) -> Tensor:
    return torch.stack([part.sum(-1) for part in shifted(x, first.unsqueeze(-1))])


@kernel
def _limits_of(sums: Tensor, sizes: Tensor, deviations: float) -> Tensor:
    total, squares = sums.unbind(0)
    return _limits(deviation(total, squares, sizes), deviations)


@kernel
def _clip(x: Tensor, limits: Tensor, ends: Tensor) -> Tensor:
    index = torch.arange(x.shape[1], device=x.device)
    limit = limits[:, torch.bucketize(index, ends, right=True)]
    return x.clamp(-limit, limit)


def _limits(sigma: Tensor, deviations: float) -> Tensor:
    return torch.where(sigma == 0, torch.inf, deviations * sigma).float()


@kernel
def _signs_and_sums(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return words `[w, groups, row]`, sums `[w, groups, 32]` of groups `[w, groups, 32, row]`."""
    up = x >= 0
    (word,) = to_words(up.to(torch.int32), 2)
    wide = x.double()
    return (
        word,
        torch.where(up, wide, 0).sum(-1),
        torch.where(up, 0, wide).sum(-1),
        up.sum(-1, dtype=torch.float64),
    )
