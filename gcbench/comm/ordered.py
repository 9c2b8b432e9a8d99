"""Floats as integers of the same order, for reductions that must not lose a NaN."""

from __future__ import annotations

import torch
from torch import Tensor

_NAN = 0x7FC00000
_MAGNITUDE = 0x7FFFFFFF


def float_to_ordered(x: Tensor, nan_is_largest: bool) -> Tensor:
    """Return int32 numbers in the order of the float32 values, with NaN above or below all others.

    The bits of non-negative floats already rise with their value; those of negative ones fall, and
    are flipped. Raises TypeError for other types than float32.
    """
    if x.dtype != torch.float32:
        raise TypeError(
            f"a maximum or minimum over workers takes float32 values, not {x.dtype}; type x.float()"
        )
    bits = torch.where(x.isnan(), _NAN if nan_is_largest else _NAN - (1 << 31), x.view(torch.int32))
    return bits ^ ((bits >> 31) & _MAGNITUDE)


def ordered_to_float(ordered: Tensor) -> Tensor:
    """Return float32 values: the inverse of `float_to_ordered`."""
    return (ordered ^ ((ordered >> 31) & _MAGNITUDE)).view(torch.float32)
