"""Top K: the largest values of each tensor, with their positions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gcbench.core.codec import Message, SparseCodec
from gcbench.core.codecs.indices import (
    Groups,
    largest_values,
    pack_indices,
    take_largest,
    unpack_indices,
)
from gcbench.core.codecs.launches import is_fused
from gcbench.core.codecs.native import is_native
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.selection import average_sparse, find_largest, take_out
from gcbench.core.compressor import Given, Grads, Properties
from gcbench.core.fields import Checked, Fraction, example


@dataclass(frozen=True)
class TopK(Checked, SparseCodec):
    """The largest values of each tensor, with their positions.

    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Stich
    et al., "Sparsified SGD with Memory", NeurIPS 2018; a baseline of PowerSGD (table 4). Of a
    tensor with n values,

        K = max(1, floor(fraction n)) of largest magnitude are sent unchanged, the others become 0

    so that ||C(v) - v||^2 <= (1 - K / n) ||v||^2. Exactly K values are sent; of equal magnitudes,
    the first in the tensor. Deterministic and biased: meant for error feedback. Workers choose
    different values, so that an all-gather is needed.

    With `bucket_scope=gradient`, all tensors are one, of which the K largest values are sent.

    Sends K float32 values and K positions per tensor. With `index=int32`, a position takes 32 bits,
    as fraction = 0.5 / 32 and 0.5 / 136 of PowerSGD's table assume. With `index=auto`, it takes
    ceil(log2 n) bits, or all positions together take n bits (a bitmap) if that is less.

    Differences from the papers: none known; positions are sent in ascending order.
    """

    fraction: Annotated[Fraction, example(0.01)]
    """share of the values of a tensor that is sent"""
    index: Literal["int32", "auto"] = "int32"
    """bits of a position: 32, or as few as the tensor's size needs"""
    properties: ClassVar[Properties] = Properties(contractive=True)

    def count(self, n: int) -> int:
        return count_share(self.fraction, n)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        counts = self._counts(segments)
        if is_fused(x):
            in_row = find_largest(x, counts, x.split(segments, dim=1))
            values = x.gather(1, in_row)
        else:
            in_row, values = largest_values(x, segments, counts)
        return self._message(values, in_row, segments)

    def encode_corrected(self, given: Given, noise: Noise) -> tuple[Message, Grads]:
        tensors, segments = given.tensors, given.segments
        is_on_gpu, counts = is_fused(tensors[0]), self._counts(segments)
        if given.keep or not (is_on_gpu or is_native(tensors[0])):
            return super().encode_corrected(given, noise)
        x = given.flat_room()
        if is_on_gpu:
            in_row = find_largest(x, counts, tensors, given.before, given.alpha)
            values = take_out(x, in_row)
        else:
            in_row, values = take_largest(tensors, given.before, given.alpha, x, counts)
        return self._message(values, in_row, segments), given.left_in(x)

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        positions, values = messages
        if positions.dtype == torch.int32 and is_fused(values):
            return average_sparse(positions, values, segments, self._counts(segments))
        return super().decode_mean(messages, segments)

    def _counts(self, segments: tuple[int, ...]) -> tuple[int, ...]:
        if self.index == "int32" and max(segments) > 1 << 31:
            raise ValueError(
                f"index=int32: a tensor of {max(segments):,} values has positions that 32 bits do "
                "not hold; type index=auto"
            )
        return tuple(map(self.count, segments))

    def _message(self, values: Tensor, in_row: Tensor, segments: tuple[int, ...]) -> Message:
        groups, starts = self._layout(segments, values.device)
        chosen = in_row - starts
        auto = self.index == "auto"
        positions = pack_indices(chosen, groups) if auto else chosen.to(torch.int32)
        return [positions, values]

    def values_at(self, message: Message, segments: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        positions, values = message
        groups, starts = self._layout(segments, positions.device)
        if self.index == "auto":
            positions = unpack_indices(positions, groups)
        return positions + starts, values

    def subtract_sent(self, x: Tensor, message: Message, segments: tuple[int, ...]) -> None:
        x.scatter_(1, self.values_at(message, segments)[0], 0)

    def _layout(self, segments: tuple[int, ...], device: torch.device) -> tuple[Groups, Tensor]:
        groups = tuple([(1, self.count(n), n) for n in segments])
        return groups, _starts(groups, device)


def count_share(fraction: float, n: int) -> int:
    """Return `fraction` of n values as a count, rounded down but at least one."""
    # Adding 1e-6 makes up for rounding: 1/272 with a few typed digits, times 272, has to give 1.
    return max(1, int(fraction * n + 1e-6))


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _starts(groups: Groups, device: torch.device) -> Tensor:
    """Return, for each chosen value, where its tensor starts in a row, `[values]`."""
    _, counts, sizes = zip(*groups, strict=True)
    return torch.tensor(np.cumsum([0, *sizes[:-1]]).repeat(counts), device=device)
