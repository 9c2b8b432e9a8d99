"""SparseLoCo's code: the largest values of each chunk, in two bits each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcbench.codecs.indices import index_bytes, largest, pack_indices, unpack_indices
from gcbench.codecs.noise import Noise
from gcbench.codecs.packing import pack, unpack
from gcbench.compressors.base import Properties
from gcbench.compressors.codec import Codec, Message
from gcbench.compressors.top_k import count_share
from gcbench.settings.compressor import Combine, Fraction
from gcbench.settings.fields import Checked, Count

_BINS = 4  # a bin number takes two bits
_BIN_IN_DEVIATIONS = 6 / _BINS  # together, the bins span six standard deviations


@dataclass(frozen=True)
class SparseLoCo(Checked, Codec):
    """The largest values of each chunk of a tensor, in two bits each, with their positions.

    Sarfi, Therien, Lidin and Belilovsky, "Communication Efficient LLM Pre-training with
    SparseLoCo", 2025 (arXiv 2508.15706), the code of its pseudo-gradients. Of every chunk of c
    consecutive values of a tensor,

        K = max(1, floor(fraction c)) of largest magnitude are chosen

    and the chosen values of a tensor, with mean mu and standard deviation sigma, go to four bins:

        bin(v) = round((v - mu) / (1.5 sigma)) + 2, clamped to 0, ..., 3
        decode: the mean of the values in the bin

    The mean of a bin is the single number closest to its values, and thus no further from them than
    zero: |C(v) - v|^2 < |v|^2. Deterministic and biased: meant for the paper's error feedback with
    decay, e <- 0.95 e + g, sends C(e), e <- e - C(e), which is alpha = beta = 0.95.

    Sends K positions of ceil(log2 c) bits per chunk (12 for 4096 values), or a bitmap of c bits if
    that is less, two bits per chosen value, and four float32 means per tensor.

    The update is the mean of all workers' codes (`combine=mean`), as in the paper's algorithm 1.
    `combine=senders`, as in the authors' code, tplr-ai/templar, divides a value by the number of
    workers that sent it; with values of which each worker sends few, the update is nearly W times
    as long (2.9 times for 3 workers, 3.9 times for 4).

    Differences from the paper: chunks are 4096 values in the order of memory, where its code takes
    64 x 64 blocks of matrices. This is the code of its pseudo-gradients only. The whole method has
    `estimator=local_steps` with `estimator.outer_lr=1 estimator.outer_momentum=0
    estimator.outer_nesterov=false`, and `optimizer=adamw` for the local steps.

    Differences from the code: sigma is that of all chosen values, where it divides by n - 1 for n
    values, so that its bins are wider (with two values a and -a in a tensor, it sends 0 for both).
    K is at least 1, not an even number of at least 2. It scales every worker's values down to the
    median of the workers' norms.
    """

    fraction: Fraction
    chunk_size: Count = 4096
    combine: Combine = "mean"
    properties: ClassVar[Properties] = Properties(contractive=True)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        layout = self._layout(segments, x.device)
        positions, in_row = [], []
        for chunks in layout.chunks:
            chosen = largest(chunks.rows_of(x), chunks.chosen)
            positions.append(pack_indices(chosen, chunks.size).reshape(len(x), -1))
            in_row.append(chunks.positions_in_row(chosen))
        bins, means = _to_bins(x.gather(1, torch.cat(in_row, dim=1)), layout)
        return [torch.cat(positions, dim=1), pack(bins, 2), means]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        out.scatter_add_(1, *self._decode(message, segments))

    def subtract_sent(self, x: Tensor, message: Message, segments: tuple[int, ...]) -> None:
        positions, values = self._decode(message, segments)
        x.scatter_add_(1, positions, values.neg_())

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        mean = super().decode_mean(messages, segments)
        if self.combine == "mean":
            return mean
        senders = torch.zeros_like(mean)
        for of_worker in zip(*messages, strict=True):
            positions, values = self._decode(list(of_worker), segments)
            senders.scatter_add_(1, positions, torch.ones_like(values))
        return mean.mul_(len(messages[0])).div_(senders.clamp_min_(1))

    def _decode(self, message: Message, segments: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the positions in a row and the values of a message, both `[r, values]`."""
        positions, packed, means = message
        layout = self._layout(segments, packed.device)
        parts = positions.split([len(c.starts) * c.index_bytes for c in layout.chunks], dim=1)
        in_row = [
            chunks.positions_in_row(
                unpack_indices(
                    part.reshape(len(part) * len(chunks.starts), -1), chunks.size, chunks.chosen
                )
            )
            for chunks, part in zip(layout.chunks, parts, strict=True)
        ]
        bins = unpack(packed, len(layout.tensors), 2).to(torch.int64)
        return torch.cat(in_row, dim=1), means.gather(1, bins + _BINS * layout.tensors)

    def _layout(self, segments: tuple[int, ...], device: torch.device) -> _Layout:
        return _layout_of(segments, self.chunk_size, self.fraction, device)


class _Chunks(NamedTuple):
    """All chunks of one size in a row of values."""

    size: int
    chosen: int  # how many values of each chunk are chosen
    starts: Tensor  # [chunks, 1]: where they begin in a row
    runs: list[tuple[int, int]]  # where adjacent chunks begin and end

    @property
    def index_bytes(self) -> int:
        """Return the size of a chunk's packed positions, in bytes."""
        return index_bytes(self.size, self.chosen)

    def rows_of(self, x: Tensor) -> Tensor:
        """Return the chunks of `[w, n]` as `[w chunks, size]`."""
        parts = [x[:, start:end] for start, end in self.runs]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).reshape(-1, self.size)

    def positions_in_row(self, chosen: Tensor) -> Tensor:
        """Return positions in chunks `[w chunks, k]` as positions in rows, `[w, chunks k]`."""
        return (chosen.view(-1, len(self.starts), self.chosen) + self.starts).flatten(1)


class _Layout(NamedTuple):
    """The chunks of a row of tensors, and which tensor each chosen value belongs to."""

    chunks: list[_Chunks]
    tensors: Tensor  # [values]
    by_tensor: Tensor  # [values]: indices of values, by tensor
    counts: Tensor  # [tensors]: how many values a tensor has


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _layout_of(
    segments: tuple[int, ...], chunk_size: int, fraction: float, device: torch.device
) -> _Layout:
    sizes: dict[int, list[tuple[int, int]]] = {}  # of each size: starts and tensors
    for i, (start, n) in enumerate(zip(accumulate(segments, initial=0), segments, strict=False)):
        for at in range(start, start + n, chunk_size):
            sizes.setdefault(min(chunk_size, start + n - at), []).append((at, i))
    chunks, tensors = [], [np.empty(0, dtype=np.int64)]
    for size, places in sizes.items():
        runs: list[tuple[int, int]] = []
        for at, _ in places:
            begin = runs.pop()[0] if runs and runs[-1][1] == at else at
            runs.append((begin, at + size))
        k, starts = count_share(fraction, size), torch.tensor([[at] for at, _ in places])
        chunks.append(_Chunks(size, k, starts.to(device), runs))
        tensors.append(np.array([i for _, i in places]).repeat(k))
    of_value = np.concatenate(tensors)
    tables = of_value, of_value.argsort(kind="stable"), np.bincount(of_value)
    return _Layout(chunks, *[torch.tensor(table, device=device) for table in tables])


def _to_bins(v: Tensor, layout: _Layout) -> tuple[Tensor, Tensor]:
    """Return the bins of values `[w, k]`, uint8, and the means of each tensor's, `[w, 4 tensors]`.

    Sums are in float64, each in the order of its values.
    """
    mean = _sums(v, layout) / layout.counts
    apart = v - mean.index_select(1, layout.tensors)
    deviation = (_sums(apart.square(), layout) / layout.counts).sqrt()
    width = (_BIN_IN_DEVIATIONS * deviation).to(v.dtype).index_select(1, layout.tensors)
    place = apart.to(v.dtype) / torch.where(width > 0, width, 1)
    # A NaN may go to any bin, but has to go to one, so that the bin's mean is NaN.
    bins = (place.round().to(torch.int32) + _BINS // 2).clamp(0, _BINS - 1)
    means = [
        _sums(torch.where(inside, v, 0), layout) / _sums(inside, layout).clamp_min(1)
        for inside in (bins == b for b in range(_BINS))
    ]
    return bins.to(torch.uint8), torch.stack(means, dim=2).flatten(1).to(v.dtype)


def _sums(x: Tensor, layout: _Layout) -> Tensor:
    """Return the sum of each tensor's values of `[w, k]`, float64 `[w, tensors]`."""
    sorted_values = x.index_select(1, layout.by_tensor).double().flatten()
    lengths = layout.counts.repeat(len(x))
    # `unsafe` skips a check of the lengths, for which the host would wait.
    sums = torch.segment_reduce(sorted_values, "sum", lengths=lengths, unsafe=True)
    return sums.view(len(x), -1)
