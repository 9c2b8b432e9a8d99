"""Blocks of consecutive codes, encoded independently so that all can be decoded in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.codecs.kernels import CACHED_VALUES, block_slices


@dataclass(frozen=True)
class Blocks:
    """Blocks of `size` codes over concatenated tensors, whose lengths are `segments`.

    No block crosses a tensor boundary; the last block of each tensor may be short.
    """

    segments: tuple[int, ...]
    size: int

    @property
    def counts(self) -> list[int]:
        """Return the number of blocks of each tensor."""
        return [-(-n // self.size) for n in self.segments]

    def split(self, codes: Tensor, size: int, fill: int) -> Tensor:
        """Return codes `[w, n]` as `[w, blocks, size]`, each block padded with `fill`.

        `size` is at least the size of the blocks.
        """
        parts = codes.split(self.segments, dim=1)
        if any(n % self.size for n in self.segments):
            parts = tuple(
                F.pad(part, (0, -part.shape[1] % self.size), value=fill) for part in parts
            )
        blocks = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).unflatten(
            1, (-1, self.size)
        )
        return F.pad(blocks, (0, size - self.size), value=fill) if size > self.size else blocks

    def join(self, blocks: Tensor) -> Tensor:
        """Return codes `[w, n]`: the inverse of `split`."""
        parts = blocks[..., : self.size].split(self.counts, dim=1)
        rows = [part.flatten(1)[:, :n] for part, n in zip(parts, self.segments, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def chunks(self, device: torch.device) -> Iterator[slice]:
        """Yield ranges of blocks that fit in a core's cache; on a GPU, one range of all blocks."""
        return block_slices(sum(self.counts), self.size, device, CACHED_VALUES)
