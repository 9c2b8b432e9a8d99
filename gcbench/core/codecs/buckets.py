"""Buckets of consecutive values that share a scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcbench.core.codecs.kernels import block_slices

# How many values one call fits parameters to: enough that the overhead of a call does not matter.
FIT_VALUES = 1 << 20

Index = NDArray[np.int64]


class Buckets:
    """Buckets of `size` values over tensors; without a size, one bucket per tensor.

    No bucket crosses a tensor boundary; the last bucket of a tensor may be short. So a method sees
    the same buckets however a model is split into messages.

    A CPU takes values in parts that fit in its cache. A GPU, where each call costs time, takes all.
    """

    def __init__(self, segments: tuple[int, ...], size: int | None, device: torch.device) -> None:
        self.segments, self.size, self.device = segments, size, device
        self._counts = [-(-n // size) if size else 1 for n in segments]
        self.count = sum(self._counts)

    @property
    def spans(self) -> Index:
        """Return each tensor's first value, values per bucket, and first bucket."""
        starts = accumulate(self.segments, initial=0)
        firsts = accumulate(self._counts, initial=0)
        sizes = [self.size or n for n in self.segments]
        return np.array([*zip(starts, sizes, firsts, strict=False)], dtype=np.int64)

    @cached_property
    def _lengths(self) -> Index:
        """Return the number of values of each bucket."""
        each = [
            np.minimum(self.size or n, n - np.arange(count) * (self.size or n))
            for n, count in zip(self.segments, self._counts, strict=True)
        ]
        return np.concatenate(each)

    @cached_property
    def sizes(self) -> Tensor:
        """Return the number of values of each bucket."""
        return self._to_device(self._lengths)

    @cached_property
    def _ends(self) -> Index:
        return self._lengths.cumsum()

    def take(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return all values of `tensors`, `[w, segment]` each, in one."""
        whole = whole_of(tensors)
        return torch.cat(list(tensors), dim=1) if whole is None else whole

    def parts(self, workers: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield the parts of all values that kernels take at once, and the buckets of values."""
        n = sum(self.segments)
        if self.device.type != "cpu":
            numbers = torch.arange(self.count, device=self.device)
            yield slice(0, n), numbers.repeat_interleave(self.sizes, output_size=n)
            return
        for part in block_slices(n, workers, self.device):
            first, last = np.searchsorted(self._ends, [part.start, part.stop - 1], "right")
            ends = self._ends[first : last + 1].clip(max=part.stop)
            lengths = torch.from_numpy(np.diff(ends, prepend=part.start))
            yield part, torch.arange(first, last + 1).repeat_interleave(lengths)

    def reduce(self, tensors: Sequence[Tensor], function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return one or more values per bucket, `[w, buckets, ...]`, of tensors `[w, segment]`.

        `function` reduces the last dimension of `[w, b, size]`.
        """
        return torch.cat([*map(function, self._views(self.take(tensors)))], dim=1)

    def _views(self, x: Tensor) -> Iterator[Tensor]:
        """Yield all buckets as `[w, b, size]`, as many as are fitted at once."""
        for part in x.split(self.segments, dim=1):
            n = part.shape[1]
            size = self.size or n
            full = part[:, : n // size * size].unflatten(1, (-1, size))
            for some in block_slices(full.shape[1], len(x) * size, self.device, FIT_VALUES):
                yield full[:, some]
            if n % size:
                yield part[:, n // size * size :].unsqueeze(1)

    def _to_device(self, index: Index) -> Tensor:
        return torch.tensor(index, device=self.device)

    def spread(self, per_bucket: Tensor) -> Tensor:
        """Return each bucket's value `[r, buckets]` repeated for all its elements, `[r, n]`."""
        n = sum(self.segments)
        return per_bucket.repeat_interleave(self.sizes, 1, output_size=n)


def whole_of(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the tensor `[w, n]` whose consecutive parts these are; None: they lie apart."""
    first, n = parts[0], sum(part.shape[1] for part in parts)
    memory, place = first.untyped_storage()._cdata, first.storage_offset()
    for part in parts:
        rows_fit = len(part) == 1 or part.stride(0) == n
        in_line = part.shape[1] == 1 or part.stride(1) == 1
        same = part.untyped_storage()._cdata == memory and part.storage_offset() == place
        if not (rows_fit and in_line and same):
            return None
        place += part.shape[1]
    return first.as_strided((len(first), n), (n, 1))


@lru_cache(maxsize=16)
def buckets_of(segments: tuple[int, ...], size: int | None, device: torch.device) -> Buckets:
    return Buckets(segments, size, device)
