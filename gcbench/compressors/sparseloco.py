"""SparseLoCo's code: the largest values of each chunk, in two bits each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gcbench.codecs.indices import index_bytes, largest, pack_indices, unpack_indices
from gcbench.codecs.means import mean_where, standard_deviation
from gcbench.codecs.noise import Noise
from gcbench.codecs.packing import pack, unpack
from gcbench.compressors.base import Properties
from gcbench.compressors.codec import Codec, Message
from gcbench.compressors.top_k import count_share
from gcbench.knobs import Checked
from gcbench.settings.compressor import ChunkSize, Combine, Fraction

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
    chunk_size: ChunkSize = 4096
    combine: Combine = "mean"
    properties: ClassVar[Properties] = Properties(contractive=True)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        positions, codes, means = [], [], []
        for tensor in self._chunks(segments):
            in_row = []
            for chunks in tensor:
                chosen = largest(chunks.rows_of(x), chunks.chosen)
                positions.append(pack_indices(chosen, chunks.size).reshape(len(x), -1))
                in_row.append(chunks.positions_in_row(chosen))
            bins, means_of_bins = _to_bins(x.gather(1, torch.cat(in_row, dim=1)))
            codes.append(bins)
            means.append(means_of_bins)
        packed = pack(torch.cat(codes, dim=1), 2)
        return [torch.cat(positions, dim=1), packed, torch.cat(means, dim=1)]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        out.scatter_add_(1, *self._decode(message, segments))

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
        tensors = self._chunks(segments)
        pieces = [chunks for tensor in tensors for chunks in tensor]
        in_row = [
            chunks.positions_in_row(
                unpack_indices(
                    part.reshape(len(part) * chunks.number, -1), chunks.size, chunks.chosen
                )
            )
            for chunks, part in zip(
                pieces,
                positions.split([c.number * c.index_bytes for c in pieces], dim=1),
                strict=True,
            )
        ]
        counts = [sum(c.number * c.chosen for c in tensor) for tensor in tensors]
        bins = unpack(packed, sum(counts), 2).to(torch.int64).split(counts, dim=1)
        tables = means.split(_BINS, dim=1)
        values = [table.gather(1, b) for table, b in zip(tables, bins, strict=True)]
        return torch.cat(in_row, dim=1), torch.cat(values, dim=1)

    def _chunks(self, segments: tuple[int, ...]) -> list[list[_Chunks]]:
        """Return the chunks of each tensor: those of full size, and a shorter last one."""
        tensors = []
        for start, n in zip(accumulate(segments, initial=0), segments, strict=False):
            full, left = divmod(n, self.chunk_size)
            pieces = ((start, full, self.chunk_size), (start + n - left, 1, left))
            tensors.append(
                [
                    _Chunks(begin, number, size, count_share(self.fraction, size))
                    for begin, number, size in pieces
                    if number and size
                ]
            )
        return tensors


class _Chunks(NamedTuple):
    """Adjacent chunks of equal size in a row of values."""

    start: int
    number: int
    size: int
    chosen: int  # how many values of each chunk are chosen

    @property
    def index_bytes(self) -> int:
        """Return the size of a chunk's packed positions, in bytes."""
        return index_bytes(self.size, self.chosen)

    def rows_of(self, x: Tensor) -> Tensor:
        """Return the chunks of `[w, n]` as `[w number, size]`."""
        return x[:, self.start : self.start + self.number * self.size].reshape(-1, self.size)

    def positions_in_row(self, chosen: Tensor) -> Tensor:
        """Return positions in chunks `[w number, k]` as positions in rows, `[w, number k]`."""
        starts = self.start + self.size * torch.arange(self.number, device=chosen.device)
        return (chosen.view(-1, self.number, self.chosen) + starts.unsqueeze(1)).flatten(1)


def _to_bins(v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bin of each value of `[w, k]`, uint8, and the mean of each bin, `[w, 4]`."""
    width = (_BIN_IN_DEVIATIONS * standard_deviation(v)).to(v.dtype).unsqueeze(1)
    mean = mean_where(v, torch.ones_like(v, dtype=torch.bool)).unsqueeze(1)
    place = (v - mean) / torch.where(width > 0, width, 1)
    # A NaN may go to any bin, but has to go to one, so that the bin's mean is NaN.
    bins = (place.round().to(torch.int32) + _BINS // 2).clamp(0, _BINS - 1)
    means = [mean_where(v, bins == b) for b in range(_BINS)]
    return bins.to(torch.uint8), torch.stack(means, dim=1)
