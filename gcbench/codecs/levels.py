"""Level tables: where the levels of a bucket are put, and random rounding to them.

The searches take `[..., d]` buckets to `[..., s]` rising levels, all buckets at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.codecs.buckets import Buckets
from gcbench.codecs.chunks import chunks
from gcbench.codecs.means import mean_where
from gcbench.codecs.noise import Noise

# Searches


def orq_levels(v: Tensor, count: int) -> Tensor:
    """Minimum, maximum, and between any two levels the one of least error (ORQ, algorithm 1), `count` = 2^K + 1 in all.

    Levels are values of the bucket: an interval is a pair of places in the sorted bucket, its sum a difference of prefix sums.
    """
    w = v.sort(dim=-1).values
    sums = F.pad(w.cumsum(-1, dtype=torch.float64), (1, 0))
    places = torch.tensor([0, w.shape[-1] - 1], device=v.device).expand(*w.shape[:-1], 2)
    while places.shape[-1] < count:
        left, right = places[..., :-1], places[..., 1:]
        middle = _middle(w, sums, left, right)
        places = torch.cat([torch.stack([left, middle], dim=-1).flatten(-2), places[..., -1:]], dim=-1)
    return w.gather(-1, places)


def _middle(w: Tensor, sums: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The place of the level of least error in each of the intervals from `left` to `right`.

    With c = sum (w - b_l) / (b_r - b_l) over the m values of [b_l, b_r] it is m - 1 - floor(c) places above `left`: the error
    is convex and piecewise linear in the level, and falls while more than c values lie at or above it. More values equal to
    an end than the interval holds would not change the place.
    """
    low, high = (w.gather(-1, places).double() for places in (left, right))
    above = sums.gather(-1, right + 1) - sums.gather(-1, left) - (right - left + 1) * low
    width = high - low
    c = (above / torch.where(width > 0, width, 1)).long()
    return torch.maximum(right - c.clamp_min(0), left)


def quantile_levels(v: Tensor, count: int) -> Tensor:
    """The quantiles 0, 1/(count - 1), ..., 1, each a value of the bucket (the nearest rank)."""
    last = v.shape[-1] - 1
    places = [(2 * k * last + count - 1) // (2 * (count - 1)) for k in range(count)]
    return v.sort(dim=-1).values[..., torch.tensor(places, device=v.device)]


def two_means(v: Tensor) -> Tensor:
    """b_-1, b_0, b_1: the mean b_0, the mean of the values below it, and that of the others (BinGrad-b, equation 17).

    Some value always is at or above the mean; where none is below (all are equal), b_-1 is 0 and serves none.
    """
    wide = v.double()
    b0 = mean_where(wide, torch.ones_like(v, dtype=torch.bool)).to(v.dtype)
    below = v < b0.unsqueeze(-1)
    return torch.stack([mean_where(wide, below).to(v.dtype), b0, mean_where(wide, ~below).to(v.dtype)], dim=-1)


def clamp_level(v: Tensor) -> Tensor:
    """`[..., d]` to the b with b d = sum of the |v_i| >= b (BinGrad-pb, equation 15), where the two sides cross.

    The left side rises with b and the right one falls, in steps at the |v_i|. With a_1 >= a_2 >= ... the sorted |v_i| and A_k
    their first sums, the crossing above a_(k+1) is at A_k / d, or at the step a_k before it.
    """
    a = v.abs().sort(dim=-1, descending=True).values
    crossings = (a.cumsum(-1, dtype=torch.float64) / v.shape[-1]).to(v.dtype)
    return torch.minimum(a, crossings).amax(-1)


# Rounding


def random_codes(x: Tensor, tables: Tensor, buckets: Buckets, noise: Noise) -> Tensor:
    """`[w, n]` values and `[w, buckets, s]` tables to codes: one of the two levels around each value, with E = the value.

    Every value lies between the first and the last level of its bucket's table.
    """
    count = tables.shape[2]
    flat = tables.flatten(1)
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    for start, stop in chunks(x.shape[1], x.device):
        v = x[:, start:stop]
        first = (buckets.index[start:stop].long() * count).expand_as(v)
        place = _place_below(v, flat, first, count)
        below = flat.gather(1, place)
        gap = flat.gather(1, place + 1) - below
        up = noise.uniform(start, stop) < (v - below) / torch.where(gap > 0, gap, 1)
        codes[:, start:stop] = place - first + up
    return codes


def _place_below(v: Tensor, flat: Tensor, first: Tensor, count: int) -> Tensor:
    """Where the last level <= v is, among all but the highest of each table, by bisection."""
    place, last = first, first + (count - 2)
    step = 1 << (count - 2).bit_length() >> 1
    while step:
        candidate = torch.minimum(place + step, last)
        place = torch.where(flat.gather(1, candidate) <= v, candidate, place)
        step >>= 1
    return place


def add_levels(codes: Tensor, tables: Tensor, buckets: Buckets, out: Tensor) -> None:
    """Add to `out` `[r, n]` the levels that `codes` name."""
    count = tables.shape[2]
    flat = tables.flatten(1)
    for start, stop in chunks(out.shape[1], out.device):
        places = codes[:, start:stop] + buckets.index[start:stop].long() * count
        out[:, start:stop] += flat.gather(1, places)


# Evenly spaced levels need no table: -scale, ..., scale


def even_codes(v: Tensor, scale: Tensor, count: int, noise: Tensor) -> Tensor:
    """Random rounding to `count` levels from -scale to scale; values outside are clamped, a zero scale codes anything."""
    unit = (v / torch.where(scale > 0, scale, 1)).clamp_(-1, 1)
    place = unit.add_(1).mul_((count - 1) / 2)
    low = place.floor()
    return low.add_(noise < place - low).to(torch.uint8)


def even_values(codes: Tensor, scale: Tensor, count: int) -> Tensor:
    """`scale * (2 code - (count - 1)) / (count - 1)`, exactly -scale and scale at the ends."""
    return codes.to(torch.float32).mul_(2).sub_(count - 1).div_(count - 1).mul_(scale)
