"""SparseLoCo's code: the largest values of each chunk, in two bits each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcbench.core.codec import Message, SparseCodec
from gcbench.core.codecs.indices import Groups, largest_values, pack_indices, unpack_indices
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.packing import pack, unpack
from gcbench.core.compressor import Given, Grads, Properties
from gcbench.core.fields import Checked, Count, Fraction, Neutral, example
from gcbench.core.methods.top_k import count_share

_BINS = 4  # a bin number takes two bits
_BIN_IN_DEVIATIONS = 6 / _BINS  # together, the bins span six standard deviations


@dataclass(frozen=True)
class SparseLoCo(Checked, SparseCodec):
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

    fraction: Annotated[Fraction, example(0.01)]
    """share of the values of a chunk that is sent"""
    chunk_size: Annotated[Count, example(4096)] = 4096
    """values of a chunk, of which `fraction` is sent [SparseLoCo, section 3]"""
    combine: Annotated[Literal["mean", "senders"], Neutral("mean")] = "mean"
    """what the sum of a value over workers is divided by: the number of workers, or of those that
    sent the value [SparseLoCo, algorithm 1; the code of DeMo and of SparseLoCo]"""
    properties: ClassVar[Properties] = Properties(contractive=True)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        in_row, bins, means = self._choose(x, segments)
        return self._message(in_row, bins, means, segments)

    def encode_corrected(self, given: Given, noise: Noise) -> tuple[Message, Grads]:
        x, segments = given.flat(), given.segments
        in_row, bins, means = self._choose(x, segments)
        sent = _from_bins(bins, means, self._layout(segments, x.device))
        left = given.left_in(x.scatter_add_(1, in_row, sent.neg()))
        return self._message(in_row, bins, means, segments), left

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        mean = super().decode_mean(messages, segments)
        if self.combine == "mean":
            return mean
        workers, rows = messages[0].shape[:2]
        positions, _values = self.values_at([m.flatten(0, 1) for m in messages], segments)
        anywhere = positions.unflatten(0, (workers, rows)).transpose(0, 1).flatten(1)
        senders = torch.zeros_like(mean).scatter_add_(
            1, anywhere, torch.ones_like(anywhere, dtype=mean.dtype)
        )
        return mean.mul_(workers).div_(senders.clamp_min_(1))

    def values_at(self, message: Message, segments: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        positions, packed, means = message
        layout = self._layout(segments, packed.device)
        in_row = unpack_indices(positions, layout.groups) + layout.starts
        return in_row, _from_bins(unpack(packed, len(layout.tensors), 2), means, layout)

    def _choose(self, x: Tensor, segments: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Return where in a row the values to send are, their bins, and the bins' means."""
        layout = self._layout(segments, x.device)
        found = largest_values(x, layout.sizes, layout.counts)
        in_row, values = (part.index_select(1, layout.order) for part in found)
        return in_row, *_to_bins(values, layout)

    def _message(
        self, in_row: Tensor, bins: Tensor, means: Tensor, segments: tuple[int, ...]
    ) -> Message:
        layout = self._layout(segments, in_row.device)
        return [pack_indices(in_row - layout.starts, layout.groups), pack(bins, 2), means]

    def _layout(self, segments: tuple[int, ...], device: torch.device) -> _Layout:
        return _layout_of(segments, self.chunk_size, self.fraction, device)


class _Layout(NamedTuple):
    """The chunks of a row of tensors, and for each value that is sent its place.

    Chunks of one size are sent together, those of the first chunk's size first.
    """

    sizes: list[int]  # of chunks in order of memory, as the next
    counts: list[int]  # how many values of each chunk are chosen
    groups: Groups
    order: Tensor  # [values]: what is the i-th to be sent of the values in order of memory
    starts: Tensor  # [values]: where its chunk begins in a row
    tensors: Tensor  # [values]: its tensor
    by_tensor: Tensor  # [values]: indices of values, by tensor
    of_tensors: Tensor  # [tensors]: how many values a tensor has


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _layout_of(
    segments: tuple[int, ...], chunk_size: int, fraction: float, device: torch.device
) -> _Layout:
    sizes, tensor_of = [], []
    for i, n in enumerate(segments):
        of_tensor = [min(chunk_size, n - at) for at in range(0, n, chunk_size)]
        sizes += of_tensor
        tensor_of += [i] * len(of_tensor)
    counts, group_of = (
        [count_share(fraction, n) for n in sizes],
        {n: i for i, n in enumerate(dict.fromkeys(sizes))},
    )
    order = np.array([group_of[n] for n in sizes]).repeat(counts).argsort(kind="stable")
    starts = np.cumsum([0, *sizes[:-1]]).repeat(counts)[order]
    tensors = np.array(tensor_of).repeat(counts)[order]
    tables = order, starts, tensors, tensors.argsort(kind="stable"), np.bincount(tensors)
    groups = tuple([(sizes.count(n), count_share(fraction, n), n) for n in group_of])
    return _Layout(sizes, counts, groups, *[torch.tensor(table, device=device) for table in tables])


def _to_bins(v: Tensor, layout: _Layout) -> tuple[Tensor, Tensor]:
    """Return the bins of values `[w, k]`, uint8, and the means of each tensor's, `[w, 4 tensors]`.

    Sums are in float64, each in the order of its values.
    """
    mean = _sums(v, layout) / layout.of_tensors
    apart = v - mean.index_select(1, layout.tensors)
    deviation = (_sums(apart.square(), layout) / layout.of_tensors).sqrt()
    width = (_BIN_IN_DEVIATIONS * deviation).to(v.dtype).index_select(1, layout.tensors)
    place = apart.to(v.dtype) / torch.where(width > 0, width, 1)
    # A NaN may go to any bin, but has to go to one, so that the bin's mean is NaN.
    bins = (place.round().to(torch.int32) + _BINS // 2).clamp(0, _BINS - 1)
    inside = bins.unsqueeze(1) == torch.arange(_BINS, device=v.device).unsqueeze(1)
    each = torch.cat([torch.where(inside, v.unsqueeze(1), 0), inside], dim=1).flatten(0, 1)
    totals, counts = _sums(each, layout).unflatten(0, (-1, 2, _BINS)).unbind(1)
    means = (totals / counts.clamp_min(1)).mT.flatten(1).to(v.dtype)
    return bins.to(torch.uint8), means


def _from_bins(bins: Tensor, means: Tensor, layout: _Layout) -> Tensor:
    """Return the values `[w, k]` that are sent: the means of their bins."""
    return means.gather(1, bins.to(torch.int64) + _BINS * layout.tensors)


def _sums(x: Tensor, layout: _Layout) -> Tensor:
    """Return the sum of each tensor's values of `[w, k]`, float64 `[w, tensors]`."""
    sorted_values = x.index_select(1, layout.by_tensor).double().flatten()
    lengths = layout.of_tensors.repeat(len(x))
    # `unsafe` skips a check of the lengths, for which the host would wait.
    sums = torch.segment_reduce(sorted_values, "sum", lengths=lengths, unsafe=True)
    return sums.view(len(x), -1)
