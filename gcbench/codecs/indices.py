"""Positions of k of n values: which they are, and as bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from gcbench.codecs.packing import pack, packed_bytes, unpack, width_of


def largest(x: Tensor, k: int) -> Tensor:
    """`[w, n]` without negative values to the positions `[w, k]` of the k largest, ascending; of equal values the first.

    Bits of such floats order as they do. With the position below them no two keys are equal, so that the choice is the same
    on any device; NaN counts as the largest, and is seen by all.
    """
    position = torch.arange(x.shape[1], device=x.device)
    keys = (x.view(torch.int32).to(torch.int64) << 32) - position
    return keys.topk(k, sorted=False).indices.sort().values


def index_bytes(n: int, k: int) -> int:
    """What `pack_indices` makes of k of n positions."""
    return min(_fixed_bytes(n, k), packed_bytes(n, 1))


def pack_indices(index: Tensor, n: int) -> Tensor:
    """`[w, k]` ascending positions below n to bytes: ceil(log2 n) bits each, or a map of n bits where that is less."""
    k = index.shape[1]
    if index_bytes(n, k) < _fixed_bytes(n, k):
        marks = torch.zeros(index.shape[0], n, dtype=torch.uint8, device=index.device)
        return pack(marks.scatter_(1, index, 1), 1)
    whole, rest = divmod(width_of(n), 8)
    planes = [((index >> (8 * i)) & 0xFF).to(torch.uint8) for i in range(whole)]
    if rest:
        planes.append(pack((index >> (8 * whole)).to(torch.uint8), rest))
    return torch.cat(planes, dim=1) if planes else index.new_empty(index.shape[0], 0, dtype=torch.uint8)


def unpack_indices(packed: Tensor, n: int, k: int) -> Tensor:
    """The inverse of `pack_indices`: `[w, bytes]` to `[w, k]` int64."""
    if index_bytes(n, k) < _fixed_bytes(n, k):
        return unpack(packed, n, 1).nonzero()[:, 1].view(-1, k)
    whole, rest = divmod(width_of(n), 8)
    index = torch.zeros(packed.shape[0], k, dtype=torch.int64, device=packed.device)
    for i, plane in enumerate(packed[:, : whole * k].unflatten(1, (whole, k)).unbind(1) if whole else ()):
        index += plane.to(torch.int64) << (8 * i)
    if rest:
        index += unpack(packed[:, whole * k :], k, rest).to(torch.int64) << (8 * whole)
    return index


def _fixed_bytes(n: int, k: int) -> int:
    whole, rest = divmod(width_of(n), 8)
    return whole * k + packed_bytes(k, rest)
