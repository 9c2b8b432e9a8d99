"""Runs of consecutive values that share a scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor


class Buckets:
    """Buckets of `size` values over tensors laid end to end; none crosses a tensor's border, the last of each is short.

    Tensors keep buckets of their own, so that a method sees the same buckets however a model is cut into messages.
    """

    def __init__(self, segments: tuple[int, ...], size: int, device: torch.device) -> None:
        self.segments = segments
        self.size = size
        lengths = [length for n in segments for length in [size] * (n // size) + ([n % size] if n % size else [])]
        self.count = len(lengths)
        self.index = torch.repeat_interleave(
            torch.arange(self.count, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int64)
        ).to(device)

    def reduce(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """`[w, n] -> [w, buckets, ...]`; `function` takes the last dimension of `[w, b, size]` to a value or to a few."""
        parts = []
        for segment in x.split(self.segments, dim=1):
            whole = segment.shape[1] // self.size * self.size
            if whole:
                parts.append(function(segment[:, :whole].unflatten(1, (-1, self.size))))
            if whole < segment.shape[1]:
                parts.append(function(segment[:, whole:].unsqueeze(1)))
        return torch.cat(parts, dim=1)

    def expand(self, scales: Tensor, start: int, stop: int) -> Tensor:
        """`[w, buckets]` to one scale for each of the values `start..stop - 1`."""
        return scales.index_select(1, self.index[start:stop])


@lru_cache(maxsize=16)
def buckets_of(segments: tuple[int, ...], size: int, device: torch.device) -> Buckets:
    return Buckets(segments, size, device)
