"""Tensors cut into blocks of one size, the last one of each padded with zeros."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def count_blocks(segments: Sequence[int], size: int) -> list[int]:
    """Return how many blocks each tensor takes; its last one may be shorter."""
    return [-(-n // size) for n in segments]


def in_blocks(tensors: Sequence[Tensor], size: int) -> Tensor:
    """Return tensors `[w, n]` as blocks `[w, blocks, size]`, one tensor after the other."""
    segments = [x.shape[1] for x in tensors]
    if len(tensors) == 1 and segments[0] % size == 0:
        return tensors[0].reshape(len(tensors[0]), -1, size)
    blocks = tensors[0].new_zeros(len(tensors[0]), sum(count_blocks(segments, size)), size)
    torch._foreach_copy_(of_blocks(blocks, segments), list(tensors))
    return blocks


def of_blocks(blocks: Tensor, segments: Sequence[int]) -> list[Tensor]:
    """Return the tensors in blocks `[w, blocks, size]` as views `[w, n]`."""
    size = blocks.shape[2]
    spans = blocks.flatten(1).split([size * count for count in count_blocks(segments, size)], dim=1)
    return [span[:, :n] for span, n in zip(spans, segments, strict=True)]
