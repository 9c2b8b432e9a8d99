"""Level tables: searches for the levels of a bucket, and rounding to them.

The searches map buckets `[..., d]` to ascending levels `[..., s]`, all buckets at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.codecs.kernels import kernel
from gcbench.codecs.means import mean_where
from gcbench.codecs.noise import unit_interval

# Searches

_RUN = 16


def orq_levels(v: Tensor, count: int) -> Tensor:
    """Return `count` = 2^K + 1 levels of each bucket (ORQ, algorithm 1).

    These are the minimum, the maximum and, recursively between two neighboring levels, the level of
    least error. Levels are values of the bucket, so that an interval is a pair of places in the
    sorted bucket and its sum a difference of prefix sums.
    """
    w = sort(v)
    sums = _PrefixSums(w)
    places = (torch.arange(2, device=v.device) * (w.shape[-1] - 1)).expand(*w.shape[:-1], 2)
    levels = w.gather(-1, places)
    below = torch.stack([torch.zeros_like(sums.total), sums.total - levels[..., 1]], dim=-1)
    while True:
        middle = _middle(places, levels, below)
        levels = _between(levels, w.gather(-1, middle))
        if levels.shape[-1] >= count:
            return _nan_unless_finite(levels)
        places, below = _between(places, middle), _between(below, sums.below(middle))


def _middle(places: Tensor, levels: Tensor, below: Tensor) -> Tensor:
    """Return the place of the level of least error in each of the intervals between `places`.

    `levels` are the values at `places`, and `below` the sums of all values before them. With c =
    sum (w - b_l) / (b_r - b_l) over the m values of [b_l, b_r], the result is m - 1 - floor(c)
    places above the left end: the error is convex and piecewise linear in the level, and falls
    while more than c values are at or above it. Further values equal to an end, but outside the
    interval's places, would not change the result.
    """
    left, right = places[..., :-1], places[..., 1:]
    low, high = levels[..., :-1].double(), levels[..., 1:].double()
    above = below[..., 1:] + high - below[..., :-1] - (right - left + 1) * low
    width = high - low
    c = (above / torch.where(width > 0, width, 1)).long()
    return torch.maximum(right - c.clamp_min(0), left)


def _between(ends: Tensor, middles: Tensor) -> Tensor:
    """Return ends `[..., k + 1]` interleaved with middles `[..., k]`, `[..., 2 k + 1]`."""
    return torch.cat(
        [torch.stack([ends[..., :-1], middles], dim=-1).flatten(-2), ends[..., -1:]], dim=-1
    )


class _PrefixSums:
    """Prefix sums of sorted values, computed at a few places only.

    Each is the sum of all complete runs before the place, plus the values from there to the place.
    """

    def __init__(self, w: Tensor) -> None:
        behind = -w.shape[-1] % _RUN
        self._runs = (F.pad(w, (0, behind)) if behind else w).unflatten(-1, (-1, _RUN))
        self._before = F.pad(_run_sums(self._runs).cumsum(-1), (1, 0))
        self.total = self._before[..., -1]

    def below(self, places: Tensor) -> Tensor:
        run = places // _RUN
        values = self._runs.gather(-2, run.unsqueeze(-1).expand(*run.shape, _RUN)).double()
        inside = torch.arange(_RUN, device=places.device) < (places - _RUN * run).unsqueeze(-1)
        return self._before.gather(-1, run) + torch.where(inside, values, 0).sum(-1)


@kernel
def _run_sums(runs: Tensor) -> Tensor:
    """Return the sum of each run, float64 `[..., runs]`, in the same order on every backend.

    `runs` is `[..., runs, values]`, where the number of values is a power of two.
    """
    sums = runs[..., ::2].double() + runs[..., 1::2].double()
    while sums.shape[-1] > 1:
        sums = sums[..., ::2] + sums[..., 1::2]
    return sums.squeeze(-1)


def quantile_levels(v: Tensor, count: int) -> Tensor:
    """Return the quantiles 0, 1/(count - 1), ..., 1 by nearest rank: values of the bucket."""
    last = v.shape[-1] - 1
    places = [(2 * k * last + count - 1) // (2 * (count - 1)) for k in range(count)]
    return _nan_unless_finite(sort(v)[..., torch.tensor(places, device=v.device)])


def _nan_unless_finite(levels: Tensor) -> Tensor:
    """Return the levels of each bucket, all NaN where its values are not all finite.

    Every code then decodes to NaN. The first and last levels tell, as sorting puts -inf first, and
    inf or NaN last.
    """
    return torch.where(
        (levels[..., :1].isfinite() & levels[..., -1:].isfinite()), levels, torch.nan
    )


def sort(v: Tensor) -> Tensor:
    """Return the values sorted along the last dimension.

    On a CPU NumPy sorts them, an order of magnitude faster than PyTorch.
    """
    return torch.from_numpy(np.sort(v.numpy(), axis=-1)) if v.is_cpu else v.sort(dim=-1).values


def two_means(v: Tensor) -> Tensor:
    """Return b_-1, b_0, b_1 of each bucket `[..., 3]` (BinGrad-b, equation 17).

    b_0 is the mean, b_-1 the mean of the values below it, and b_1 the mean of the others.

    Some value is always at or above the mean. If all values are equal, none is below it, and b_-1
    is 0 and unused.
    """
    b0 = mean_where(v, torch.ones_like(v, dtype=torch.bool))
    # If the mean is NaN, all values count as below it, as they do in rounding.
    below = ~(v >= b0.unsqueeze(-1))
    return torch.stack([mean_where(v, below), b0, mean_where(v, ~below)], dim=-1)


def clamp_level(v: Tensor) -> Tensor:
    """Return the b with b d = sum of the |v_i| >= b (BinGrad-pb, equation 15), `[..., d] -> [...]`.

    The left side rises with b and the right side falls, in steps at the |v_i|. With a_1 >= a_2 >=
    ... the sorted |v_i| and A_k = a_1 + ... + a_k, the sides cross above a_(k+1) at A_k / d, or at
    the step a_k if that is smaller.
    """
    a = -sort(-v.abs())
    crossings = (a.cumsum(-1, dtype=torch.float64) / v.shape[-1]).to(v.dtype)
    return torch.minimum(a, crossings).amax(-1)


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
