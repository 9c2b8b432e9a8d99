"""Buckets of consecutive values that share a scale, and the order in which codecs read values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcbench.core.codecs.kernels import block_slices
from gcbench.core.codecs.padding import Padded, pad_places, pad_rows

ROW = 512
# How many values one call fits parameters to: enough that the overhead of a call does not matter.
FIT_VALUES = 1 << 20
# How many values a CPU copies in about the time of one kernel call.
LARGE = 1 << 18

Index = NDArray[np.int64]


class Piece(NamedTuple):
    """Consecutive values of one tensor."""

    tensor: int
    offset: int
    length: int

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return these values as a view of their tensor; `tensors` are `[w, segment]` each."""
        return tensors[self.tensor][:, self.offset : self.offset + self.length]


Place = tuple[int, int, int, int, int]
"""A piece's tensor, offset, length, first bucket, and values per bucket."""


class Places(NamedTuple):
    """The pieces that native code takes, in the order of their codes."""

    rows: list[Place]
    tails: list[Place]
    shorts: list[Place]  # the shorter last bucket of each tensor


class Rows(NamedTuple):
    """Values in the order of their codes: groups of rows, then the rest."""

    tensors: Sequence[Tensor]  # the tensors that the values belong to, `[w, segment]` each
    matrices: list[tuple[slice, Tensor]]  # ranges of groups, with `[w, groups, rows, row]` each
    rest: Tensor  # `[w, rest]`: the values outside groups
    copied: Tensor  # `[w, n]`: all values that are copies rather than views of the tensors
    row: int  # the length of a row


class Groups(NamedTuple):
    """The place and the bucket of every row of values, and of every value of the rest."""

    # [groups, rows per group]: positions of the rows' first values in the concatenated tensors.
    starts: Tensor
    buckets: Tensor  # [groups, rows per group]
    one_row: bool  # whether the i-th row belongs to the i-th bucket, for all rows
    rest_positions: Tensor  # [rest]
    rest_buckets: Tensor  # [rest]
    by_bucket: Tensor  # [rows + rest]: indices of rows and of values of the rest, by bucket
    bucket_lengths: Tensor  # [buckets]: how many of these indices a bucket has


class Buckets:
    """Buckets of `size` values over tensors; without a size, one bucket per tensor.

    No bucket crosses a tensor boundary; the last bucket of a tensor may be short. So a method sees
    the same buckets however a model is split into messages.

    Kernels take groups of rows of equal length, where a row belongs to a single bucket. First come
    the rows that fill whole groups inside a large tensor, which a CPU reads in place; then the
    other rows of full buckets, the rows of short buckets, and the tails, which are shorter than a
    row. All but the first are copied. A GPU copies everything, since that costs less than one call
    per large tensor.
    """

    def __init__(
        self, segments: tuple[int, ...], size: int | None, rows: int, device: torch.device
    ) -> None:
        self.segments, self.size, self.device = segments, size, device
        self.row = ROW if size is None or size % ROW == 0 else size
        self.rows = rows  # per group
        unit = math.lcm(rows * self.row, size or 1)
        large, full, short, tails = [], [], [], []
        for i, n in enumerate(segments):
            in_full = n // size * size if size else 0
            in_rows = n // self.row * self.row
            in_groups = (in_full if size else in_rows) // unit * unit
            start = in_groups if in_groups >= LARGE else 0
            large.append(Piece(i, 0, start))
            full.append(Piece(i, start, max(in_full - start, 0)))
            start = max(in_full, start)
            short.append(Piece(i, start, in_rows - start))
            tails.append(Piece(i, in_rows, n - in_rows))
        large, full, short, self._tails = (
            [piece for piece in pieces if piece.length] for pieces in (large, full, short, tails)
        )
        self._in_rows = [*large, *full, *short]
        self._full = [*large, *full] if size else []
        self._in_place = large if _takes_in_place(device) else []
        self._copied = [*self._in_rows[len(self._in_place) :], *self._tails]
        self.full_count = sum(piece.length for piece in self._full) // size if size else 0
        self._shorts = [
            Piece(i, n - left, left)
            for i, n in enumerate(segments)
            if (left := n % size if size else n)
        ]
        self.count = self.full_count + len(self._shorts)

    def places(self) -> Places:
        """Return where rows, tails and shorter buckets lie, as native code takes it."""
        first, full = 0, []
        for piece in self._full:
            assert self.size
            full.append((piece.tensor, piece.offset, piece.length, first, self.size))
            first += piece.length // self.size
        short_of = {piece.tensor: k for k, piece in enumerate(self._shorts, start=self.full_count)}
        rows, tails, shorts = (
            [
                (piece.tensor, piece.offset, piece.length, short_of[piece.tensor], 1 << 62)
                for piece in pieces
            ]
            for pieces in (self._in_rows[len(full) :], self._tails, self._shorts)
        )
        return Places([*full, *rows], tails, shorts)

    def take(self, tensors: Sequence[Tensor]) -> Rows:
        """Return the values of `tensors`, `[w, segment]` each, in the order of their codes."""
        parts = [piece.of(tensors) for piece in self._copied]
        return self._as_rows(tensors, torch.cat([tensors[0][:, :0], *parts], dim=1))

    def make_room(self, tensors: Sequence[Tensor]) -> Rows:
        """Return rows to write values of `tensors` into; `put_back` then completes the tensors."""
        n = sum(piece.length for piece in self._copied)
        return self._as_rows(tensors, tensors[0].new_empty(len(tensors[0]), n))

    def put_back(self, rows: Rows) -> None:
        """Write the copied values of `rows` back into its tensors."""
        if self._copied:
            places = [piece.of(rows.tensors) for piece in self._copied]
            lengths = [piece.length for piece in self._copied]
            # No public function copies many tensors in one launch.
            torch._foreach_copy_(places, list(rows.copied.split(lengths, dim=1)))

    def reduce(self, rows: Rows, function: Callable[..., Tensor]) -> Tensor:
        """Return one or more values per bucket, `[w, buckets, ...]`.

        `function` reduces the last dimension of `[w, b, size]`. A GPU, where each call costs time,
        takes all shorter buckets of similar lengths `[b]` at once, with zeros behind them.
        """
        if not _takes_in_place(self.device):
            parts = [function(full) for full in self._full_buckets(rows)]
            for size, places in self._padded.by_size:
                parts.append(function(pad_rows(rows.copied, places, size), places[-1]))
            each = torch.cat(parts, dim=1)
            order = self._padded.order
            return each if order is None else each.index_select(1, order)
        parts = []
        for full in self._full_buckets(rows):
            blocks = block_slices(full.shape[1], len(full) * full.shape[2], full.device, FIT_VALUES)
            parts += [function(full[:, part]) for part in blocks]
        for tensor, n in zip(rows.tensors, self.segments, strict=True):
            if short := n % self.size if self.size else n:
                parts.append(function(tensor[:, n - short :].unsqueeze(1)))
        return torch.cat(parts, dim=1)

    def spread(self, per_bucket: Tensor) -> Tensor:
        """Return each bucket's value `[r, buckets]` repeated for all its elements, `[r, n]`."""
        if self.device.type != "cpu":  # one call for all tensors
            ids, sizes = self._in_order
            n = sum(self.segments)
            return per_bucket.index_select(1, ids).repeat_interleave(sizes, 1, output_size=n)
        each = [
            per_bucket.index_select(1, ids).repeat_interleave(self.size or n, dim=1)[:, :n]
            for ids, n in zip(self._ids_there, self.segments, strict=True)
        ]
        return torch.cat(each, dim=1)

    @cached_property
    def _ids_there(self) -> list[Tensor]:
        return [self._to_device(ids) for ids in self._ids]

    def _as_rows(self, tensors: Sequence[Tensor], copied: Tensor) -> Rows:
        matrices, first = [], 0
        for piece in self._in_place:
            matrix = self._as_groups(piece.of(tensors))
            matrices.append((slice(first, first + matrix.shape[1]), matrix))
            first += matrix.shape[1]
        last = len(self.groups.starts)
        inside = (last - first) * self.rows * self.row
        if inside:
            matrices.append((slice(first, last), self._as_groups(copied[:, :inside])))
        return Rows(tensors, matrices, copied[:, inside:], copied, self.row)

    def _as_groups(self, x: Tensor) -> Tensor:
        """Return a view of `[w, n]` as `[w, groups, rows, row]`.

        With one worker, its strides depend on the shape alone.
        """
        shape = -1, self.rows, self.row
        return x[0].view(shape).unsqueeze(0) if len(x) == 1 else x.unflatten(1, shape)

    def _full_buckets(self, rows: Rows) -> Iterator[Tensor]:
        """Yield all full buckets, `[w, b, size]`."""
        for piece in self._in_place if self.size else []:
            yield piece.of(rows.tensors).unflatten(1, (-1, self.size))
        if n := sum(piece.length for piece in self._full[len(self._in_place) :]):
            yield rows.copied[:, :n].unflatten(1, (-1, self.size))

    @cached_property
    def _padded(self) -> Padded:
        """Return where a GPU finds the values of the shorter buckets."""
        return pad_places(self._shorts, self._copied, self.size, self.full_count, self.device)

    @cached_property
    def sizes(self) -> Tensor:
        """Return the number of values of each bucket."""
        full = [self.size or 0] * self.full_count
        return self._to_device(np.array([*full, *(piece.length for piece in self._shorts)]))

    @cached_property
    def _in_order(self) -> tuple[Tensor, Tensor]:
        """Return the numbers and the sizes of the buckets, in the order of their values."""
        ids = self._to_device(np.concatenate(self._ids))
        return ids, self.sizes.index_select(0, ids)

    @cached_property
    def _ids(self) -> list[Index]:
        """Return the bucket numbers of each tensor, by position."""
        ids: list[list[Index]] = [[_NONE] for _ in self.segments]
        first = 0
        for piece in self._full:
            assert self.size
            count = piece.length // self.size
            ids[piece.tensor].append(np.arange(first, first + count))
            first += count
        for number, piece in enumerate(self._shorts, start=first):
            ids[piece.tensor].append(np.array([number]))
        return [*map(np.concatenate, ids)]

    @cached_property
    def groups(self) -> Groups:
        """Return the places and buckets of rows; they take memory, and native code needs none."""
        position, bucket = self._places(self._in_rows, self.row)
        count = len(position) // self.rows
        inside = count * self.rows
        rest = (position[inside:, None] + np.arange(self.row)).ravel()
        of_rest = bucket[inside:].repeat(self.row)
        position, bucket = position[:inside], bucket[:inside]
        in_tails, of_tails = self._places(self._tails, 1)
        of_rest = np.concatenate([of_rest, of_tails])
        of_items = np.concatenate([bucket, of_rest])
        return Groups(
            self._to_device(position).view(count, self.rows),
            self._to_device(bucket).view(count, self.rows),
            bool((bucket == np.arange(inside)).all()),
            self._to_device(np.concatenate([rest, in_tails])),
            self._to_device(of_rest),
            self._to_device(of_items.argsort(kind="stable")),
            self._to_device(np.bincount(of_items, minlength=self.count)),
        )

    def _places(self, pieces: Sequence[Piece], step: int) -> tuple[Index, Index]:
        """Return the position in the concatenated tensors and the bucket of every step-th value."""
        starts = list(accumulate(self.segments, initial=0))
        places, buckets = [_NONE], [_NONE]
        for i, offset, length in pieces:
            inside = np.arange(offset, offset + length, step)
            places.append(starts[i] + inside)
            buckets.append(self._ids[i][inside // (self.size or self.segments[i])])
        return np.concatenate(places), np.concatenate(buckets)

    def _to_device(self, index: Index) -> Tensor:
        return torch.tensor(index, dtype=torch.int64, device=self.device)


_NONE: Index = np.empty(0, dtype=np.int64)


def _takes_in_place(device: torch.device) -> bool:
    return device.type == "cpu"


@lru_cache(maxsize=16)
def buckets_of(
    segments: tuple[int, ...], size: int | None, rows: int, device: torch.device
) -> Buckets:
    return Buckets(segments, size, rows, device)
