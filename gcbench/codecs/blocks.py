"""Runs of consecutive codes that are coded by themselves, so that all of them can be decoded at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.codecs.kernels import CACHED_VALUES


@dataclass(frozen=True)
class Blocks:
    """Blocks of `size` codes over tensors laid end to end; none crosses a tensor's border, the last of each may be short."""

    segments: tuple[int, ...]
    size: int

    @property
    def counts(self) -> list[int]:
        """Blocks of each tensor."""
        return [-(-n // self.size) for n in self.segments]

    def split(self, codes: Tensor, size: int, fill: int) -> Tensor:
        """`[w, n]` to `[w, blocks, size]` for a size of at least the blocks'; `fill` is behind a block's end."""
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
        """The inverse of `split`."""
        parts = blocks[..., : self.size].split(self.counts, dim=1)
        rows = [part.flatten(1)[:, :n] for part, n in zip(parts, self.segments, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def chunks(self, device: torch.device) -> Iterator[slice]:
        """Ranges of blocks that stay in a core's cache together; a GPU takes all in one launch."""
        count = sum(self.counts)
        step = max(1, CACHED_VALUES // self.size) if device.type == "cpu" else count
        for start in range(0, count, step):
            yield slice(start, min(start + step, count))
