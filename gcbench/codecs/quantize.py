"""Scales, and stochastic rounding to a grid of levels evenly spaced from -scale to scale."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gcbench.codecs.kernels import kernel

Norm = Literal["linf", "l2"]


@kernel
def max_norm(x: Tensor) -> Tensor:
    """Return the largest magnitude along the last dimension."""
    return x.abs().amax(-1)


def l2_norm(x: Tensor) -> Tensor:
    """Return the 2-norm along the last dimension, never below the largest magnitude.

    Values are scaled by that so that no square over- or underflows.
    """
    largest = max_norm(x)
    unit = torch.where(largest > 0, largest, 1).unsqueeze(-1)
    return largest * torch.linalg.vector_norm(x / unit, dim=-1).clamp_min(1)


NORMS = {"linf": max_norm, "l2": l2_norm}


def stochastic_round(x: Tensor, noise: Tensor) -> Tensor:
    """Return x rounded up with the probability of its fraction, else down: E = x.

    Integers stay where they are.
    """
    low = x.floor()
    return low.add_(noise < x - low)


_ONE = 1 << 23  # a step of the grid in fixed point: codes of 8 bits fill an int32


def grid_codes(v: Tensor, scale: Tensor, highest: int, words: Tensor) -> Tensor:
    """Return int32 codes 0 to `highest` <= 255 with E[code] = (v / scale + 1) highest / 2.

    |v| <= scale.

    In fixed point: the code is the integer part of the place on the grid plus a draw from [0, 1). A
    zero scale codes anything. Dividing first keeps |v| / scale <= 1 exactly, even for denormals. A
    NaN may be any code, but has to be one, as its neighbors share its words.
    """
    end = highest * (_ONE // 2)
    place = (v / torch.where(scale > 0, scale, 1) * float(end)).to(torch.int32).clamp(-end, end)
    return (place + (words >> 9) + (end + _ONE // 2)) >> 23


def grid_values(centered: Tensor, scale: Tensor, highest: int) -> Tensor:
    """Return the values of codes less `highest / 2`, or of sums of such codes.

    They are exactly -scale and scale at the ends.
    """
    return centered.to(torch.float32) / (highest / 2) * scale
