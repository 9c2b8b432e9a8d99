"""Buckets of consecutive values that share a scale, and the order in which codecs take values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcbench.codecs.kernels import block_slices

ROW = 512
# Values to fit parameters to at once: so many that a call's overhead does not count.
FIT_VALUES = 1 << 20


class Piece(NamedTuple):
    """Consecutive values of one tensor."""

    tensor: int
    offset: int
    length: int


class Groups(NamedTuple):
    """Rows taken several at a time, and the rest.

    Every index counts values or buckets of a reordered row.
    """

    # [groups, rows a group]: where each row's first value is in the tensors laid end to end.
    starts: Tensor
    buckets: Tensor  # [groups, rows a group]
    one_row: bool  # is each of these buckets, in order
    rest_positions: Tensor  # [rest]
    rest_buckets: Tensor  # [rest]
    by_bucket: Tensor  # [rows + rest]: the rows of groups and the rest, in the order of buckets
    bucket_lengths: Tensor  # [buckets]: how many of these a bucket has


class Buckets:
    """Buckets of `size` values over tensors laid end to end; without a size, one bucket a tensor.

    No bucket crosses a tensor's border, the last of each is short: tensors keep buckets of their
    own, so that a method sees the same buckets however a model is cut into messages.

    Kernels want values as a matrix. So values are reordered into rows of equal length that belong
    to one bucket each: first those of full buckets, then those of short ones, and behind them the
    tails, which fill no row.
    """

    def __init__(self, segments: tuple[int, ...], size: int | None, device: torch.device) -> None:
        self.segments = segments
        self.device = device
        self.size = size
        self.row = ROW if size is None or size % ROW == 0 else size
        full, rows, tails = [], [], []
        for i, n in enumerate(segments):
            in_full = n // size * size if size else 0
            in_rows = (n - in_full) // self.row * self.row
            full.append(Piece(i, 0, in_full))
            rows.append(Piece(i, in_full, in_rows))
            tails.append(Piece(i, in_full + in_rows, n - in_full - in_rows))
        self._pieces = [piece for piece in (*full, *rows, *tails) if piece.length]
        self._short = [
            (r.length, t.length) for r, t in zip(rows, tails, strict=True) if r.length + t.length
        ]
        self._full = sum(piece.length for piece in full)
        self.full_count = self._full // size if size else 0
        self.count = self.full_count + len(self._short)
        short_sizes = [r + t for r, t in self._short]
        bucket_sizes = np.append(np.full(self.full_count, size or 0), short_sizes)
        self.sizes = torch.tensor(bucket_sizes.astype(np.int64), device=device)
        self.rows = (self._full + sum(r for r, _ in self._short)) // self.row
        self._in_order = self._pieces == sorted(self._pieces)
        self._groups: dict[int, Groups] = {}

    def reorder(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the tensors, `[w, segment]` each, as `[w, n]` in this order."""
        if len(tensors) == 1:
            return tensors[0]
        return torch.cat([tensors[i][:, start : start + n] for i, start, n in self._pieces], dim=1)

    def restore_order(self, x: Tensor) -> Tensor:
        """Return values in this order as tensors end to end."""
        if self._in_order:
            return x
        parts = zip(
            self._pieces, x.split([piece.length for piece in self._pieces], dim=1), strict=True
        )
        return torch.cat([part for _, part in sorted(parts, key=lambda pair: pair[0])], dim=1)

    def reduce(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return one value, or a few, of each bucket: reordered `[w, n]` to `[w, buckets, ...]`.

        `function` reduces the last dimension of `[w, b, size]`.
        """
        parts = []
        if self.full_count:
            assert self.size
            full = x[:, : self._full].unflatten(1, (self.full_count, self.size))
            parts += [
                function(full[:, part])
                for part in block_slices(self.full_count, self.size * len(x), x.device, FIT_VALUES)
            ]
        row, tail = self._full, self.rows * self.row
        for in_rows, in_tail in self._short:
            pieces = [
                p for p in (x[:, row : row + in_rows], x[:, tail : tail + in_tail]) if p.shape[1]
            ]
            parts.append(
                function((torch.cat(pieces, dim=1) if len(pieces) > 1 else pieces[0]).unsqueeze(1))
            )
            row, tail = row + in_rows, tail + in_tail
        return torch.cat(parts, dim=1)

    def spread(self, per_bucket: Tensor) -> Tensor:
        """Return for each reordered value that of its bucket, `[r, buckets] -> [r, n]`."""
        groups = self.groups(1)
        in_rows = per_bucket.index_select(1, groups.buckets.flatten()).repeat_interleave(
            self.row, dim=1
        )
        return torch.cat([in_rows, per_bucket.index_select(1, groups.rest_buckets)], dim=1)

    def groups(self, rows: int) -> Groups:
        """Return the groups of `rows` rows."""
        if rows not in self._groups:
            self._groups[rows] = self._make_groups(rows)
        return self._groups[rows]

    def _make_groups(self, rows: int) -> Groups:
        count = self.rows // rows
        bucket = self._bucket_of_values()
        starts = list(accumulate(self.segments, initial=0))
        position = np.concatenate(
            [np.arange(n) + starts[i] + start for i, start, n in self._pieces]
        )
        inside = count * rows * self.row
        first = slice(0, inside, self.row)
        of_rows = bucket[first]
        of_items = np.concatenate([of_rows, bucket[inside:]])
        return Groups(
            self._to_device(position[first]).view(count, rows),
            self._to_device(of_rows).view(count, rows),
            bool((of_rows == np.arange(len(of_rows))).all()),
            self._to_device(position[inside:]),
            self._to_device(bucket[inside:]),
            self._to_device(of_items.argsort(kind="stable")),
            self._to_device(np.bincount(of_items, minlength=self.count)),
        )

    def _bucket_of_values(self) -> NDArray[np.int64]:
        """Return the bucket of each reordered value, `[n]`."""
        short = np.arange(self.full_count, self.count)
        return np.concatenate(
            [
                np.arange(self._full) // (self.size or 1),
                short.repeat([r for r, _ in self._short]),
                short.repeat([t for _, t in self._short]),
            ]
        )

    def _to_device(self, index: NDArray[np.int64]) -> Tensor:
        return torch.tensor(index, device=self.device)


@lru_cache(maxsize=16)
def buckets_of(segments: tuple[int, ...], size: int | None, device: torch.device) -> Buckets:
    return Buckets(segments, size, device)
