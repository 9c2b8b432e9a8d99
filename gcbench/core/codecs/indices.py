"""Positions of k of n values: finding the largest ones, and packing positions into bytes."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_int64, c_void_p
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcbench.core.codecs.native import address, addresses, addresses_in, is_native, load_native
from gcbench.core.codecs.packing import pack, packed_bytes, unpack, width_of

Sizes = Sequence[int]
Addresses = Array[c_void_p] | None


def largest(x: Tensor, k: int) -> Tensor:
    """Return the positions `[w, k]`, ascending, of the k largest magnitudes of each row `[w, n]`.

    Ties are broken in favor of lower positions.
    """
    return largest_of_each(x, (x.shape[1],), (k,))


def largest_of_each(x: Tensor, segments: Sizes, counts: Sizes) -> Tensor:
    """Return `largest` of each segment of rows `[w, n]`, with its k from `counts`, in one row.

    Positions are those in a row of x. The bits of magnitudes, read as integers, have the same
    order. A key is these bits above the position, so that no two keys are equal and the choice is
    the same on every device. NaN counts as the largest magnitude, so that it is sent and all
    workers see it.
    """
    if is_native(x):
        return largest_values(x, segments, counts)[0]
    return _largest_eager(x, segments, counts)


def _largest_eager(x: Tensor, segments: Sizes, counts: Sizes) -> Tensor:
    parts, start = [], 0
    for run in _runs(tuple(segments), tuple(counts), x.is_cuda):
        size = sum(n for n, _ in run)
        part = x[:, start : start + size]
        if len({*run}) > 1:
            found = _largest_by_sort(part, run)
        else:  # segments of one size are rows
            n, k = run[0]
            found = _largest_of_rows(part.reshape(-1, n), k).view(len(x), len(run), k)
            found = (found + torch.arange(0, size, n, device=x.device).unsqueeze(1)).flatten(1)
        parts.append(found + start if start else found)
        start += size
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def largest_values(x: Tensor, segments: Sizes, counts: Sizes) -> tuple[Tensor, Tensor]:
    """Return the positions of `largest_of_each`, and the values there."""
    if is_native(x):
        return _largest_native(addresses_in(x, segments), None, None, 1, len(x), segments, counts)
    positions = _largest_eager(x, segments, counts)
    return positions, x.gather(1, positions)


def take_largest(
    tensors: Sequence[Tensor],
    residual: Sequence[Tensor],
    alpha: float,
    sums: Tensor,
    counts: Sizes,
) -> tuple[Tensor, Tensor]:
    """Return `largest_values` of tensors `[w, n]` + alpha residual, by native code in one pass.

    The sums are written to a row of `sums`, which may lie where the residual does, with 0 for those
    that are returned.
    """
    rows, sizes = len(sums), [x.shape[1] for x in tensors]
    x, before = addresses(tensors, rows, sizes), addresses(residual, rows, sizes)
    return _largest_native(x, before, addresses_in(sums, sizes), alpha, rows, sizes, counts)


def _largest_native(
    x: Addresses,
    before: Addresses,
    sums: Addresses,
    alpha: float,
    rows: int,
    sizes: Sizes,
    counts: Sizes,
) -> tuple[Tensor, Tensor]:
    chosen = torch.empty(rows, sum(counts), dtype=torch.int64)
    values = torch.empty(rows, sum(counts), dtype=torch.float32)
    load_native().largest(
        *(x, before, sums, alpha),
        address(chosen, torch.int64, chosen.numel()),
        address(values, torch.float32, values.numel()),
        *(rows, len(sizes), (c_int64 * len(sizes))(*sizes), (c_int64 * len(counts))(*counts)),
        torch.get_num_threads(),
    )
    return chosen, values


def sparse_mean(positions: Tensor, values: Tensor, n: int) -> Tensor:
    """Return the means `[r, n]` over workers of values `[W, r, k]` at positions, 0 elsewhere.

    Values are added in the order of the workers. Raises ValueError for positions beyond n.
    """
    workers, rows, k = values.shape
    if not is_native(values):
        total = values.new_zeros(rows, n)
        for of_worker in zip(positions, values, strict=True):
            total.scatter_add_(1, *of_worker)
        anywhere = positions.transpose(0, 1).flatten(1)
        return total.scatter_(1, anywhere, total.gather(1, anywhere).div_(workers))
    least, most = positions.aminmax()
    if least < 0 or most >= n:
        raise ValueError(f"a position is beyond the {n} values of a row")
    positions, values = positions.contiguous(), values.contiguous()
    out = torch.empty(rows, n, dtype=torch.float32)
    load_native().sparse_mean(
        address(positions, torch.int64, workers * rows * k),
        *(address(values, torch.float32, workers * rows * k), workers, rows, k, n),
        *(address(out, torch.float32, rows * n), torch.get_num_threads()),
    )
    return out


Run = tuple[tuple[int, int], ...]
"""The size and the k of segments that are taken at once."""


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _runs(segments: tuple[int, ...], counts: tuple[int, ...], mixed: bool) -> list[Run]:
    """Return runs of segments of one size or, if `mixed`, of any size that a GPU sorts at once."""
    pairs = list(zip(segments, counts, strict=True))
    if not mixed:
        return [tuple(run) for _, run in groupby(pairs)]
    before = accumulate(segments, initial=0)
    return [
        tuple(pair for _, pair in run)
        for _, run in groupby(zip(before, pairs, strict=False), lambda item: item[0] // _SORTED)
    ]


def _largest_by_sort(x: Tensor, run: Run) -> Tensor:
    """Return `largest_of_each` by a single sort of all segments, which takes few launches."""
    ends, heads = _heads(run, x.device)
    segment = torch.bucketize(torch.arange(x.shape[1], device=x.device), ends, right=True)
    order = ((segment << 31) - _bits(x)).sort(dim=1, stable=True).indices
    return order.index_select(1, heads).sort(dim=1).values


@lru_cache(maxsize=64)
def _heads(run: Run, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where segments end, and the places of the k largest where each segment is sorted."""
    ends = np.cumsum([n for n, _ in run])
    heads = [np.arange(end - n, end - n + k) for (n, k), end in zip(run, ends, strict=True)]
    return torch.tensor(ends, device=device), torch.tensor(np.concatenate(heads), device=device)


def _largest_of_rows(x: Tensor, k: int) -> Tensor:
    n = x.shape[1]
    if not x.is_cpu or n <= _SAMPLE or k > n // _SHARE:
        return _largest_of(_bits(x), torch.arange(n, device=x.device).expand_as(x), k)
    rows = []
    for row in _bits(x):
        candidates = _candidates(row, k)
        rows.append(_largest_of(row[candidates].unsqueeze(0), candidates.unsqueeze(0), k))
    return torch.cat(rows)


def _bits(x: Tensor) -> Tensor:
    """Return the bits of magnitudes as int32, which have the same order."""
    return x.abs().view(torch.int32)


def _largest_of(bits: Tensor, positions: Tensor, k: int) -> Tensor:
    """Return the positions of the k largest of `bits` `[w, c]`, ascending."""
    keys = (bits.to(torch.int64) << 32) - positions
    return positions.gather(1, keys.topk(k, sorted=False).indices).sort().values


_SHARE = 8  # looking for candidates first pays only where k <= n / _SHARE
_SAMPLE = 1 << 14
_SORTED = 1 << 25  # values that a GPU sorts at once, for which it needs 40 bytes each


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


Groups = tuple[tuple[int, int, int], ...]
"""Of each group of rows of positions: their number, and k and n of each."""


def pack_indices(index: Tensor, groups: Groups) -> Tensor:
    """Return ascending positions `[w, all]` packed into uint8 `[w, bytes]`, row by row.

    The k positions below n of a row take `index_bytes(n, k)`: ceil(log2 n) bits each, or together a
    bitmap of n bits where that is smaller.
    """
    layout, columns = (
        _layout_of(groups, index.device),
        index.split([r * k for r, k, _ in groups], 1),
    )
    out = torch.zeros(len(index), layout.size, dtype=torch.uint8, device=index.device)
    fixed = [part for part, place in zip(columns, layout.maps, strict=True) if not place]
    if fixed:
        each = (torch.cat(fixed, dim=1) if len(fixed) > 1 else fixed[0]).unsqueeze(1)
        bits = (((each >> layout.right) & layout.mask) << layout.left).to(torch.uint8)
        out.scatter_add_(1, layout.at.flatten().expand(len(index), -1), bits.flatten(1))
    for part, place, (rows, k, n) in zip(columns, layout.maps, groups, strict=True):
        if place:
            marks = torch.zeros(len(index) * rows, n, dtype=torch.uint8, device=index.device)
            out[:, place] = pack(marks.scatter_(1, part.reshape(-1, k), 1), 1).view(len(index), -1)
    return out


def unpack_indices(packed: Tensor, groups: Groups) -> Tensor:
    """Return int64 positions `[w, all]`: the inverse of `pack_indices`."""
    layout = _layout_of(groups, packed.device)
    bits = packed.index_select(1, layout.at.flatten()).view(len(packed), *layout.at.shape)
    bits = ((bits.to(torch.int64) >> layout.left) & layout.mask) << layout.right
    fixed = bits.sum(1).split(
        [r * k for place, (r, k, _) in zip(layout.maps, groups, strict=True) if not place], dim=1
    )
    remaining, parts = iter(fixed), []
    for place, (rows, k, n) in zip(layout.maps, groups, strict=True):
        if not place:
            parts.append(next(remaining))
            continue
        marks = unpack(packed[:, place].reshape(len(packed) * rows, -1), n, 1)
        if marks.is_cpu:
            marked = marks.nonzero()
        else:  # `nonzero` would make the host wait for their number
            marked = torch.nonzero_static(marks, size=len(marks) * k)
        parts.append(marked[:, 1].view(len(packed), -1))
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


class _Layout(NamedTuple):
    """The places of packed positions: the bits of each in up to `terms` bytes, or bitmaps."""

    size: int
    maps: list[slice | None]  # the bytes of each group of bitmaps
    at: Tensor  # [terms, positions]: a byte, which has (position >> right & mask) << left
    right: Tensor
    mask: Tensor
    left: Tensor


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _layout_of(groups: Groups, device: torch.device) -> _Layout:
    size, tables, maps = 0, [np.zeros((4, 0, 0), dtype=np.int64)], list[slice | None]()
    for rows, k, n in groups:
        of_row = index_bytes(n, k)
        is_map = of_row < _fixed_bytes(n, k)
        maps.append(slice(size, size + rows * of_row) if is_map else None)
        if not is_map:
            table = np.tile(_terms(n, k), rows)
            table[0] += size + np.arange(rows).repeat(k) * of_row
            tables.append(table)
        size += rows * of_row
    terms = max(table.shape[1] for table in tables)
    padded = [np.pad(table, ((0, 0), (0, terms - table.shape[1]), (0, 0))) for table in tables]
    at, *shifts = torch.tensor(np.concatenate(padded, axis=2), device=device)
    return _Layout(size, maps, at, *[x.to(torch.uint8) for x in shifts])


def _terms(n: int, k: int) -> NDArray[np.int64]:
    """Return byte, right shift, mask and left shift `[4, terms, k]` of a row's positions.

    Whole bytes are in planes; what is left of each position is packed as `pack` does.
    """
    whole, rest = divmod(width_of(n), 8)
    each = np.arange(k)
    terms: list[tuple[Any, ...]] = [(i * k + each, 8 * i, 255, 0) for i in range(whole)]
    if rest:
        word, lane = np.divmod(each, 8)
        byte, bit = np.divmod(rest * lane, 8)
        byte += whole * k + word * rest
        low = np.minimum(rest, 8 - bit)
        terms.append((byte, 8 * whole, (1 << low) - 1, bit))
        terms.append((byte + (low < rest), 8 * whole + low, (1 << (rest - low)) - 1, 0))
    rows = [np.broadcast_arrays(*term) for term in terms]
    return np.array(rows, dtype=np.int64).reshape(-1, 4, k).transpose(1, 0, 2)


def _fixed_bytes(n: int, k: int) -> int:
    whole, rest = divmod(width_of(n), 8)
    return whole * k + packed_bytes(k, rest)
