"""DeMo: the strongest frequencies of a momentum, which keeps what was not sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gcbench.codecs.indices import index_bytes, largest, pack_indices, unpack_indices
from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Grads, Properties, State, Step, add_scaled
from gcbench.compressors.matrices import matrix_shape
from gcbench.knobs import Checked
from gcbench.settings.compressor import ChunkSide, Coefficients, Combine, SignumMomentum


@dataclass(frozen=True)
class DeMo(Checked):
    """The strongest frequencies of each block of a momentum, which keeps the others.

    Peng, Quesnelle and Kingma, "DeMo: Decoupled Momentum Optimization", 2024 (arXiv 2411.19870),
    algorithm 1. Every tensor is a matrix, cut into equal blocks of at most s x s values. At worker
    i with gradient g_i, and with D the orthonormal discrete cosine transform of each block:

        m_i <- beta m_i + g_i
        q_i = the K coefficients of D m_i of largest magnitude in each block, or all of them
        m_i <- m_i - D^T q_i
        update = sign(D^T sum over workers of q_i)

    The momentum takes the place of an error-feedback residual. The update consists of -1, 0 and 1,
    as in `Signum`: the learning rate is the change of every value in a step, and the optimizer has
    no momentum of its own.

    Sends K float32 coefficients per block, and K positions of ceil(log2(block size)) bits (12 for
    64 x 64), or a bitmap of the block if that is smaller.

    `combine=senders`, as in the authors' code, bloc97/DeMo, divides the sum of a coefficient by the
    number of workers that sent it, so that a frequency that one worker sent weighs as much as one
    that all did. 0.4 % of the signs differ for 2 workers and 8 coefficients, with the defaults and
    correlated gradients 2.1 % for 4 workers and 5.5 % for 16.

    Differences from the paper: none in the default, which leaves open how workers are combined.
    Differences from the code: it adds lr g_i to the momentum, which is equivalent while the
    learning rate is constant. Tensors with more than two
    dimensions are matrices with their first dimension as rows.
    """

    coefficients: Coefficients  # K
    momentum: SignumMomentum  # beta
    chunk_side: ChunkSide = 64  # s
    combine: Combine = "mean"
    properties: ClassVar[Properties] = Properties(direction=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        before = state.per_worker or {k: torch.zeros_like(g) for k, g in grads.items()}
        momenta = add_scaled(grads, before, self.momentum)
        blocks = {k: self._blocks(g) for k, g in grads.items()}
        chosen, values = {}, {}
        for k, b in blocks.items():
            coefficients = b.transform(momenta[k])
            chosen[k] = largest(coefficients, b.chosen)
            values[k] = coefficients.gather(1, chosen[k])
        w = len(next(iter(grads.values())))
        packed = [pack_indices(chosen[k], b.size).reshape(w, -1) for k, b in blocks.items()]
        floats = [v.view(w, -1) for v in values.values()]
        positions, sent_values = comm.gather([torch.cat(packed, dim=1), torch.cat(floats, dim=1)])
        sent = {k: b.restore(chosen[k], values[k], momenta[k]) for k, b in blocks.items()}
        update = self._decode(positions, sent_values, blocks, grads)
        left = {k: m - sent[k] for k, m in momenta.items()}
        return Aggregated(update, lambda: sent, State(per_worker=left))

    def _decode(
        self, positions: Tensor, values: Tensor, blocks: dict[str, _Blocks], grads: Grads
    ) -> Grads:
        """Return the signs of all workers' combined messages, `[W, bytes]` and `[W, values]`."""
        parts = zip(
            blocks.items(),
            positions.split([b.number * b.bytes_of_positions for b in blocks.values()], dim=1),
            values.split([b.number * b.chosen for b in blocks.values()], dim=1),
            strict=True,
        )
        update = {}
        for (k, b), packed, part in parts:
            rows = packed.reshape(len(packed) * b.number, -1)
            index = unpack_indices(rows, b.size, b.chosen).view(len(packed), b.number, b.chosen)
            total = part.new_zeros(b.number, b.size)
            senders = torch.zeros_like(total)
            for worker in range(len(packed)):
                total.scatter_add_(1, index[worker], part[worker].view(b.number, b.chosen))
                senders.scatter_add_(1, index[worker], total.new_ones(b.number, b.chosen))
            if self.combine == "senders":
                total /= senders.clamp_min(1)
            update[k] = b.inverse(total.unsqueeze(0), grads[k][:1]).sign()
        return update

    def _blocks(self, g: Tensor) -> _Blocks:
        n, m = matrix_shape(g)
        height, width = _divisor(n, self.chunk_side), _divisor(m, self.chunk_side)
        return _Blocks(n, m, height, width, min(self.coefficients, height * width))


class _Blocks(NamedTuple):
    """The blocks of equal size into which an n x m matrix is cut."""

    n: int
    m: int
    height: int
    width: int
    chosen: int  # number of coefficients sent per block

    @property
    def size(self) -> int:
        return self.height * self.width

    @property
    def number(self) -> int:
        return self.n * self.m // self.size

    @property
    def bytes_of_positions(self) -> int:
        """Return the size of a block's packed positions, in bytes."""
        return index_bytes(self.size, self.chosen)

    def transform(self, x: Tensor) -> Tensor:
        """Return the coefficients `[w number, size]` of the blocks of `[w, ...]`."""
        rows = x.reshape(-1, self.n // self.height, self.height, self.m // self.width, self.width)
        left, right = _cosines(self.height, x.device), _cosines(self.width, x.device)
        # One worker at a time: a batched product would round differently from a single one.
        return torch.cat(
            [(left @ row.transpose(1, 2) @ right.mT).reshape(-1, self.size) for row in rows]
        )

    def inverse(self, coefficients: Tensor, like: Tensor) -> Tensor:
        """Return the values of coefficients `[w, number, size]`, shaped as `like`."""
        left, right = _cosines(self.height, like.device), _cosines(self.width, like.device)
        across = self.m // self.width
        rows = coefficients.view(len(coefficients), -1, across, self.height, self.width)
        return torch.stack(
            [(left.mT @ row @ right).transpose(1, 2).reshape(like.shape[1:]) for row in rows]
        )

    def restore(self, chosen: Tensor, values: Tensor, like: Tensor) -> Tensor:
        """Return the values of k coefficients per block, `[w number, k]`, shaped as `like`."""
        coefficients = values.new_zeros(len(values), self.size).scatter(1, chosen, values)
        return self.inverse(coefficients.view(len(like), self.number, self.size), like)


@lru_cache(maxsize=64)
def _cosines(n: int, device: torch.device) -> Tensor:
    """Return the orthonormal matrix `[n, n]` of the discrete cosine transform (DCT-II)."""
    place = torch.arange(n, dtype=torch.float64)
    waves = torch.cos(math.pi / n * (place + 0.5) * place.unsqueeze(1)) * (2 / n) ** 0.5
    waves[0] *= 0.5**0.5
    return waves.float().to(device)


@lru_cache(maxsize=1024)
def _divisor(n: int, most: int) -> int:
    """Return the largest divisor of n that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)
