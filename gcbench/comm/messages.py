"""Tensors as the bytes of one message, and floats as integers of the same order, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Part = tuple[slice, torch.dtype, torch.Size]
"""The place of a tensor in a row of bytes, its type and its shape."""


def as_bytes(x: Tensor) -> Tensor:
    """Return the bytes of `x`, copied where it is not contiguous."""
    return x.contiguous().view(torch.uint8)


def to_bytes(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Part]]:
    """Return `[w, ...]` tensors concatenated as `[w, bytes]`, and the place of each."""
    rows = [as_bytes(t.reshape(t.shape[0], -1)) for t in tensors]
    parts, start = [], 0
    for t, row in zip(tensors, rows, strict=True):
        parts.append((slice(start, start + row.shape[1]), t.dtype, t.shape[1:]))
        start += row.shape[1]
    return (rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)), parts


def from_bytes(everyone: Tensor, part: Part) -> Tensor:
    """Return the tensor at `part` of every row, `[W, bytes] -> [W, ...]`."""
    where, dtype, shape = part
    columns = everyone[:, where]
    if dtype != torch.uint8:  # a view as a wider type needs aligned rows
        columns = columns.clone(memory_format=torch.contiguous_format).flatten().view(dtype)
    return columns.reshape(len(everyone), *shape)


def pad_rows(rows: list[Tensor], starts: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """Return one tensor of every row's message, zero-padded to `[W, longest]`.

    `starts` are in bytes, `lengths` in values.
    """
    out = torch.zeros(len(rows), int(lengths.max()), dtype=dtype, device=rows[0].device)
    for row, target, start, n in zip(rows, out, starts.tolist(), lengths.tolist(), strict=True):
        target[:n] = row[start : start + n * dtype.itemsize].clone().view(dtype)
    return out


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
