"""Scales and stochastic rounding to evenly spaced levels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Norm = Literal["linf", "l2"]


def max_norm(x: Tensor) -> Tensor:
    """Over the last dimension."""
    return x.abs().amax(-1)


def l2_norm(x: Tensor) -> Tensor:
    """Over the last dimension, scaled by the maximum so that no square over- or underflows, and never below it."""
    largest = max_norm(x)
    unit = torch.where(largest > 0, largest, 1).unsqueeze(-1)
    return largest * torch.linalg.vector_norm(x / unit, dim=-1).clamp_min(1)


NORMS = {"linf": max_norm, "l2": l2_norm}


def stochastic_round(x: Tensor, noise: Tensor) -> Tensor:
    """Up with the probability of the fraction, else down: E = x, and integers stay where they are."""
    low = x.floor()
    return low.add_(noise < x - low)


def quantise(v: Tensor, scale: Tensor, levels: int, noise: Tensor) -> Tensor:
    """Codes `levels + round(levels * v / scale)` in 0..2 levels as uint8, given `|v| <= scale`; a zero scale codes zero.

    The magnitude is rounded, then the sign put back. Dividing first keeps |v| / scale <= 1 exactly, even for denormals.
    """
    unit = torch.where(scale > 0, scale, 1)
    magnitude = stochastic_round((v.abs() / unit).mul_(levels), noise)
    return torch.copysign(magnitude, v).add_(levels).to(torch.uint8)


def dequantise(codes: Tensor, scale: Tensor, levels: int) -> Tensor:
    """`scale * (code - levels) / levels`."""
    return (codes.to(torch.float32) - levels).mul_(scale / levels)
