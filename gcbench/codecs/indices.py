"""Positions of k of n values: finding the largest ones, and packing positions into bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gcbench.codecs.native import is_native, load_native
from gcbench.codecs.packing import pack, packed_bytes, unpack, width_of


def largest(x: Tensor, k: int) -> Tensor:
    """Return the positions `[w, k]`, ascending, of the k largest magnitudes of each row `[w, n]`.

    Ties are broken in favor of lower positions.

    The bits of magnitudes, read as integers, have the same order. A key is these bits above the
    position, so that no two keys are equal and the choice is the same on every device. NaN counts
    as the largest magnitude, so that it is sent and all workers see it.
    """
    n = x.shape[1]
    few = k <= n // _SHARE
    if few and is_native(x):
        x, chosen = x.contiguous(), torch.empty(len(x), k, dtype=torch.int64)
        load_native().largest(x.data_ptr(), chosen.data_ptr(), len(x), n, k)
        return chosen
    if not x.is_cpu or n <= _SAMPLE or not few:
        return _largest_of(_bits(x), torch.arange(n, device=x.device).expand_as(x), k)
    rows = []
    for row in _bits(x):
        candidates = _candidates(row, k)
        rows.append(_largest_of(row[candidates].unsqueeze(0), candidates.unsqueeze(0), k))
    return torch.cat(rows)


def largest_of_each(x: Tensor, segments: Sequence[int], counts: Sequence[int]) -> list[Tensor]:
    """Return `largest` of each segment of rows `[w, n]`, with its k from `counts`."""
    if not x.is_cuda:
        parts = x.split(list(segments), dim=1)
        return [largest(part, k) for part, k in zip(parts, counts, strict=True)]
    # The keys of all segments are computed at once; `topk`, on CUDA a radix select, runs on each.
    keys = _keys(_bits(x), torch.arange(x.shape[1], device=x.device))
    parts = keys.split(list(segments), dim=1)
    chosen = [part.topk(k, sorted=False).indices for part, k in zip(parts, counts, strict=True)]
    return [positions.sort().values for positions in chosen]


def _bits(x: Tensor) -> Tensor:
    """Return the bits of magnitudes as int32, which have the same order."""
    return x.abs().view(torch.int32)


def _largest_of(bits: Tensor, positions: Tensor, k: int) -> Tensor:
    """Return the positions of the k largest of `bits` `[w, c]`, ascending."""
    chosen = _keys(bits, positions).topk(k, sorted=False).indices
    return positions.gather(1, chosen).sort().values


def _keys(bits: Tensor, positions: Tensor) -> Tensor:
    return (bits.to(torch.int64) << 32) - positions


_SHARE = 8  # looking for candidates first pays only where k <= n / _SHARE
_SAMPLE = 1 << 14


def _candidates(bits: Tensor, k: int) -> Tensor:
    """Return the positions of all values that reach some threshold, at least k of them.

    The threshold is estimated from a sample. If fewer than k values reach it, all values are
    candidates.
    """
    n = len(bits)
    sample = bits[:: max(1, n // _SAMPLE)]
    expected = k * len(sample) / n
    above = int(expected + 4 * expected**0.5 + 4)
    if above >= len(sample):
        return torch.arange(n)
    candidates = (bits >= sample.topk(above).values[-1]).nonzero().squeeze(1)
    return candidates if len(candidates) >= k else torch.arange(n)


def index_bytes(n: int, k: int) -> int:
    """Return the size in bytes of k of n positions packed by `pack_indices`."""
    return min(_fixed_bytes(n, k), packed_bytes(n, 1))


def pack_indices(index: Tensor, n: int) -> Tensor:
    """Return ascending positions `[w, k]` below n packed into uint8 `[w, index_bytes(n, k)]`.

    They take ceil(log2 n) bits each, or together a bitmap of n bits where that is smaller.
    """
    k = index.shape[1]
    if index_bytes(n, k) < _fixed_bytes(n, k):
        marks = torch.zeros(index.shape[0], n, dtype=torch.uint8, device=index.device)
        return pack(marks.scatter_(1, index, 1), 1)
    whole, rest = divmod(width_of(n), 8)
    planes = [((index >> (8 * i)) & 0xFF).to(torch.uint8) for i in range(whole)]
    if rest:
        planes.append(pack((index >> (8 * whole)).to(torch.uint8), rest))
    if not planes:
        return index.new_empty(index.shape[0], 0, dtype=torch.uint8)
    return torch.cat(planes, dim=1)


def unpack_indices(packed: Tensor, n: int, k: int) -> Tensor:
    """Return int64 positions `[w, k]`: the inverse of `pack_indices`."""
    if index_bytes(n, k) < _fixed_bytes(n, k):
        marks = unpack(packed, n, 1)
        if marks.is_cpu:
            marked = marks.nonzero()
        else:  # `nonzero` would make the host wait for their number
            marked = torch.nonzero_static(marks, size=len(marks) * k)
        return marked[:, 1].view(-1, k)
    whole, rest = divmod(width_of(n), 8)
    index = torch.zeros(packed.shape[0], k, dtype=torch.int64, device=packed.device)
    for i, plane in enumerate(packed[:, : whole * k].unflatten(1, (whole, k)).unbind(1)):
        index += plane.to(torch.int64) << (8 * i)
    if rest:
        index += unpack(packed[:, whole * k :], k, rest).to(torch.int64) << (8 * whole)
    return index


def _fixed_bytes(n: int, k: int) -> int:
    whole, rest = divmod(width_of(n), 8)
    return whole * k + packed_bytes(k, rest)
