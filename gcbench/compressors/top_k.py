"""Top K: the largest values of each tensor, with their positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.codecs.indices import index_bytes, largest, pack_indices, unpack_indices
from gcbench.codecs.noise import Noise
from gcbench.compressors.base import Properties
from gcbench.compressors.exchange import Codec, Message
from gcbench.knobs import Checked
from gcbench.method_settings import Fraction, IndexCode


@dataclass(frozen=True)
class TopK(Checked, Codec):
    """The largest values of each tensor, with their positions.

    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Stich
    et al., "Sparsified SGD with Memory", NeurIPS 2018; as compared with in PowerSGD (table 4). Of a
    tensor of n values

        K = max(1, floor(fraction n)) of largest magnitude are sent as they are, the others as 0

    so that ||C(v) - v||^2 <= (1 - K / n) ||v||^2. Exactly K, of equal magnitudes the first in the
    tensor. Deterministic and biased: made for error feedback. Workers choose different values, so
    that an all-gather is needed.

    Sends per tensor K float32 values and K positions. `index=int32`: 32 bits each, which fraction =
    0.5 / 32 and 0.5 / 136 of PowerSGD's table count. `index=auto`: ceil(log2 n) bits each, or n
    bits in all (a map) where that is less.

    Differences from the papers: none known; positions are sent in ascending order.
    """

    fraction: Fraction
    index: IndexCode = "int32"
    properties: ClassVar[Properties] = Properties(contractive=True)

    def count(self, n: int) -> int:
        return max(1, int(self.fraction * n + 1e-6))  # 1e-6: 1/272 as typed, times 272, is 1

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        positions, values = [], []
        for tensor in x.split(segments, dim=1):
            n = tensor.shape[1]
            chosen = largest(tensor.abs(), self.count(n))
            positions.append(
                pack_indices(chosen, n) if self.index == "auto" else chosen.to(torch.int32)
            )
            values.append(tensor.gather(1, chosen))
        return [torch.cat(positions, dim=1), torch.cat(values, dim=1)]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        counts = [self.count(n) for n in segments]
        lengths = (
            [index_bytes(n, k) for n, k in zip(segments, counts, strict=True)]
            if self.index == "auto"
            else counts
        )
        positions, values = message
        parts = zip(
            out.split(segments, dim=1),
            positions.split(lengths, dim=1),
            values.split(counts, dim=1),
            strict=True,
        )
        for tensor, packed, chosen in parts:
            n, k = tensor.shape[1], chosen.shape[1]
            index = unpack_indices(packed, n, k) if self.index == "auto" else packed.to(torch.int64)
            tensor.scatter_add_(1, index, chosen)
