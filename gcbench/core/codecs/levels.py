"""Level tables: searches for the levels of a bucket, and rounding to them.

The searches map buckets `[..., size]` to ascending levels `[..., s]`, all buckets at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.noise import unit_interval
from gcbench.core.codecs.scales import fixed_sum, mean_where


def orq_levels(v: Tensor, count: int) -> Tensor:
    """Return `count` = 2^K + 1 levels of each bucket (ORQ, algorithm 1).

    These are the minimum, the maximum and, recursively between two neighboring levels, the level of
    least error. Levels are values of the bucket, so that an interval is a pair of places in the
    sorted bucket and its sum a difference of prefix sums.
    """
    w = sort(v)
    sums = _fixed_point(w).cumsum(-1)
    places = _in_each(v, (v.shape[-1] - 1) * torch.arange(2, device=v.device))
    while places.shape[-1] < count:
        places = _halve(places, w, sums)
    return _levels_at(places, w)


def quantile_levels(v: Tensor, count: int) -> Tensor:
    """Return the quantiles 0, 1/(count - 1), ..., 1 by nearest rank: values of the bucket."""
    doubled = torch.arange(0, 2 * count, 2, device=v.device)
    places = (doubled * (v.shape[-1] - 1) + (count - 1)) // (2 * (count - 1))
    return _levels_at(_in_each(v, places), sort(v))


def _in_each(v: Tensor, places: Tensor) -> Tensor:
    return places.expand(*v.shape[:-1], -1)


def clamp_level(v: Tensor) -> Tensor:
    """Return the b with b d = sum of the |v_i| >= b (BinGrad-pb, equation 15), `[..., d] -> [...]`.

    The left side rises with b and the right side falls, in steps at the |v_i|. With a_1 >= a_2 >=
    ... the sorted |v_i| and A_k = a_1 + ... + a_k, the sides cross above a_(k+1) at A_k / d, or at
    the step a_k if that is smaller.
    """
    w = sort(-v.abs())
    return _crossing(w, _fixed_point(w).cumsum(-1))


@kernel
def _crossing(w: Tensor, sums: Tensor) -> Tensor:
    """Return the crossing of `clamp_level`; `w` are the sorted -|v_i|, and `sums` theirs."""
    crossings = ((0 - sums) / w.shape[-1] / _scale(w)).to(w.dtype)
    level, last = torch.minimum(-w, crossings).amax(-1), w[..., -1]
    # An infinity is the first value, and a NaN the last.
    return torch.where(last != last, last, torch.where(w[..., 0] == -torch.inf, -w[..., 0], level))


@kernel
def _halve(places: Tensor, w: Tensor, sums: Tensor) -> Tensor:
    """Return places in the sorted `w`, with that of the level of least error between any two.

    `sums` are prefix sums. With c = sum (w - b_l) / (b_r - b_l) over the m values of [b_l, b_r],
    the result is m - 1 - floor(c) places above the left end: the error is convex and piecewise
    linear in the level, and falls while more than c values are at or above it. Further values equal
    to an end, but outside the interval's places, would not change the result.
    """
    last = places.shape[-1] - 1
    number = torch.arange(2 * last + 1, device=places.device)
    left = places.index_select(-1, number // 2)
    right = places.index_select(-1, (number // 2 + 1).clamp_max(last))
    low, high = (_whole(w.gather(-1, end), _scale(w)) for end in (left, right))
    before = sums.gather(-1, left) - low
    above = sums.gather(-1, right) - before - (right - left + 1) * low
    c = (above / torch.where(high > low, high - low, 1)).long()
    middle = torch.maximum(right - c.clamp_min(0), left)
    return torch.where(number % 2 == 1, middle, left)


@kernel
def _levels_at(places: Tensor, w: Tensor) -> Tensor:
    """Return the levels at places in the sorted `w`, all NaN where values are not all finite.

    Every code then decodes to NaN. The first and last values tell, as sorting puts -inf first, and
    inf or NaN last. Adding 0 turns -0 into 0, as sorting leaves the two in any order.
    """
    finite = w[..., :1].isfinite() & w[..., -1:].isfinite()
    return torch.where(finite, w.gather(-1, places) + 0.0, torch.nan)


@kernel
def _fixed_point(w: Tensor) -> Tensor:
    """Return sorted values as whole numbers, float64, whose sums are exact in any order.

    These are multiples of a power of two, of which d values add up to less than 2^51: `Fixed` in
    fits.h.
    """
    return _whole(w, _scale(w))


def _whole(w: Tensor, scale: Tensor) -> Tensor:
    return (w.double() * scale).round()


def _scale(w: Tensor) -> Tensor:
    """Return the power of two, `[..., 1]`, that turns values of the sorted `w` into fixed point."""
    most = torch.maximum(-w[..., :1], w[..., -1:]).float()
    above = (most.view(torch.int32) >> 23).clamp_min(1).long()
    length = (w.shape[-1] - 1).bit_length()
    return ((176 - length - above + 1023) << 52).view(torch.float64)


def sort(v: Tensor) -> Tensor:
    """Return the values sorted along the last dimension.

    On a CPU NumPy sorts them, an order of magnitude faster than PyTorch.
    """
    return torch.from_numpy(np.sort(v.numpy(), axis=-1)) if v.is_cpu else v.sort(dim=-1).values


@kernel
def two_means(v: Tensor) -> Tensor:
    """Return b_-1, b_0, b_1 of each bucket `[..., 3]` (BinGrad-b, equation 17).

    b_0 is the mean, b_-1 the mean of the values below it, and b_1 the mean of the others.

    Some value is always at or above the mean. If all values are equal, none is below it, and b_-1
    is 0 and unused.
    """
    b0 = (fixed_sum(v) / v.shape[-1]).to(v.dtype)
    # If the mean is NaN, all values count as below it, as they do in rounding.
    reach = v >= b0.unsqueeze(-1)
    return torch.stack([mean_where(v, ~reach), b0, mean_where(v, reach)], dim=-1)


# Rounding, inside kernels: every level is a tensor of its own, which broadcasts with the values


def random_codes(v: Tensor, levels: Sequence[Tensor], words: Tensor) -> Tensor:
    """Return the code of one of the two levels around each value, so that E[level] = value.

    Values outside the first and the last level are rounded to the nearer of these.
    """
    place, count = torch.zeros_like(words), len(levels)
    while len(levels) > 2:  # bisection: either half of the levels, its middle one in both
        half = len(levels) // 2
        reached = v >= levels[half]
        upper = [*levels[half:], *[levels[-1]] * (len(levels) % 2 == 0)]
        levels = [
            torch.where(reached, above, below)
            for below, above in zip(levels[: half + 1], upper, strict=True)
        ]
        place = torch.where(reached, place + half, place)
    below, above = levels
    gap = above - below
    up = unit_interval(words) < (v - below) / torch.where(gap > 0, gap, 1)
    return torch.where(up, place + 1, place).clamp_max(count - 1)


def level_values(codes: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Return the level of each code."""
    values = levels[0]
    for code, level in enumerate(levels[1:], start=1):
        values = torch.where(codes >= code, level, values)
    return values
