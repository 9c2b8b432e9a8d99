"""Scales, and stochastic rounding to a grid of levels evenly spaced from -scale to scale."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gcbench.codecs.kernels import kernel
from gcbench.codecs.means import two_norm

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
