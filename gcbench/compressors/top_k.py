"""Top K: the largest values of each tensor, with their positions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gcbench.codecs.indices import index_bytes, largest_of_each, pack_indices, unpack_indices
from gcbench.codecs.noise import Noise
from gcbench.compressors.base import Properties
from gcbench.compressors.codec import Codec, Message
from gcbench.settings.compressor import Fraction, IndexCode
from gcbench.settings.fields import Checked


@dataclass(frozen=True)
class TopK(Checked, Codec):
    """The largest values of each tensor, with their positions.

    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Stich
    et al., "Sparsified SGD with Memory", NeurIPS 2018; a baseline of PowerSGD (table 4). Of a
    tensor with n values,

        K = max(1, floor(fraction n)) of largest magnitude are sent unchanged, the others become 0

    so that ||C(v) - v||^2 <= (1 - K / n) ||v||^2. Exactly K values are sent; of equal magnitudes,
    the first in the tensor. Deterministic and biased: meant for error feedback. Workers choose
    different values, so that an all-gather is needed.

    Sends K float32 values and K positions per tensor. With `index=int32`, a position takes 32 bits,
    as fraction = 0.5 / 32 and 0.5 / 136 of PowerSGD's table assume. With `index=auto`, it takes
    ceil(log2 n) bits, or all positions together take n bits (a bitmap) if that is less.

    Differences from the papers: none known; positions are sent in ascending order.
    """

    fraction: Fraction
    index: IndexCode = "int32"
    properties: ClassVar[Properties] = Properties(contractive=True)

    def count(self, n: int) -> int:
        return count_share(self.fraction, n)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        counts = [self.count(n) for n in segments]
        chosen = largest_of_each(x, segments, counts)
        in_row = torch.cat(chosen, dim=1) + _starts(segments, tuple(counts), x.device)
        if self.index == "auto":
            packed = [pack_indices(part, n) for part, n in zip(chosen, segments, strict=True)]
            positions = torch.cat(packed, dim=1)
        else:
            positions = torch.cat(chosen, dim=1).to(torch.int32)
        return [positions, x.gather(1, in_row)]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        out.scatter_add_(1, self._positions(message, segments), message[1])

    def subtract_sent(self, x: Tensor, message: Message, segments: tuple[int, ...]) -> None:
        x.scatter_(1, self._positions(message, segments), 0)

    def _positions(self, message: Message, segments: tuple[int, ...]) -> Tensor:
        """Return the positions in a row of the message's values, `[r, values]`."""
        counts = [self.count(n) for n in segments]
        positions = message[0]
        if self.index == "auto":
            sizes = list(zip(segments, counts, strict=True))
            parts = positions.split([index_bytes(n, k) for n, k in sizes], dim=1)
            unpacked = [
                unpack_indices(part, n, k) for part, (n, k) in zip(parts, sizes, strict=True)
            ]
            positions = torch.cat(unpacked, dim=1)
        return positions + _starts(segments, tuple(counts), positions.device)


def count_share(fraction: float, n: int) -> int:
    """Return `fraction` of n values as a count, rounded down but at least one."""
    # Adding 1e-6 makes up for rounding: 1/272 with a few typed digits, times 272, has to give 1.
    return max(1, int(fraction * n + 1e-6))


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _starts(segments: tuple[int, ...], counts: tuple[int, ...], device: torch.device) -> Tensor:
    """Return, for each chosen value, where its tensor starts in a row, `[values]`."""
    starts = np.cumsum([0, *segments[:-1]]).repeat(counts)
    return torch.tensor(starts, device=device)
