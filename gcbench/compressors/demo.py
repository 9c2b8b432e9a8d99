"""DeMo: the strongest frequencies of a momentum, which keeps what was not sent."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gcbench.codecs.indices import index_bytes, largest, pack_indices, unpack_indices
from gcbench.codecs.kernels import CACHED_VALUES
from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Grads, Properties, State, Step, add_scaled
from gcbench.compressors.matrices import matrix_shape
from gcbench.settings.compressor import Combine
from gcbench.settings.fields import Checked, Count, Share


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

    coefficients: Count  # K
    momentum: Share  # beta
    chunk_side: Count = 64  # s
    combine: Combine = "mean"
    properties: ClassVar[Properties] = Properties(direction=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        before = state.per_worker or {k: torch.zeros_like(g) for k, g in grads.items()}
        summed = add_scaled(grads, before, self.momentum)
        momenta = {k: m.contiguous() for k, m in summed.items()}
        some = next(iter(momenta.values()))
        groups = self._groups(grads)
        sent_parts: list[Tensor] = []
        for group in groups:
            shape = len(some), group.number, group.chosen
            chosen, values = some.new_empty(shape, dtype=torch.int64), some.new_empty(shape)
            # One worker at a time: a batched product would round differently from a single one.
            for row in range(len(some)):
                for part, blocks in group.parts([m[row] for m in momenta.values()]):
                    coefficients = group.transform(blocks)
                    chosen[row, part] = largest(coefficients, group.chosen)
                    values[row, part] = coefficients.gather(1, chosen[row, part])
                    torch._foreach_sub_(
                        blocks, group.restore(chosen[row, part], values[row, part], blocks)
                    )
            sent_parts += [chosen, values]
        packed = [
            pack_indices(chosen.flatten(0, 1), group.size).reshape(len(some), -1)
            for group, chosen in zip(groups, sent_parts[::2], strict=True)
        ]
        floats = [values.flatten(1) for values in sent_parts[1::2]]
        positions, sent_values = comm.gather([torch.cat(packed, dim=1), torch.cat(floats, dim=1)])

        def sent() -> Grads:
            restored = {k: torch.empty_like(m) for k, m in momenta.items()}
            for group, chosen, values in zip(
                groups, sent_parts[::2], sent_parts[1::2], strict=True
            ):
                for row in range(len(some)):
                    for part, blocks in group.parts([x[row] for x in restored.values()]):
                        torch._foreach_copy_(
                            blocks, group.restore(chosen[row, part], values[row, part], blocks)
                        )
            return restored

        update = self._decode(positions, sent_values, groups, grads)
        return Aggregated(update, sent, State(per_worker=momenta))

    def _decode(
        self, positions: Tensor, values: Tensor, groups: Sequence[_Group], grads: Grads
    ) -> Grads:
        """Return the signs of all workers' combined messages, `[W, bytes]` and `[W, values]`."""
        update = {k: values.new_empty(1, *g.shape[1:]) for k, g in grads.items()}
        packed = positions.split([g.number * g.bytes_of_positions for g in groups], dim=1)
        floats = values.split([g.number * g.chosen for g in groups], dim=1)
        for group, codes, of_group in zip(groups, packed, floats, strict=True):
            rows = codes.reshape(len(codes) * group.number, -1)
            shape = len(codes), group.number, group.chosen
            index = unpack_indices(rows, group.size, group.chosen).view(shape)
            of_workers = of_group.reshape(shape)
            for part, blocks in group.parts([x[0] for x in update.values()]):
                total = values.new_zeros(index[0, part].shape[0], group.size)
                senders = torch.zeros_like(total)
                for worker in range(len(codes)):
                    total.scatter_add_(1, index[worker, part], of_workers[worker, part])
                    if self.combine == "senders":
                        senders.scatter_add_(
                            1, index[worker, part], torch.ones_like(of_workers[worker, part])
                        )
                if self.combine == "senders":
                    total /= senders.clamp_min(1)
                torch._foreach_copy_(blocks, group.inverse(total, blocks, sign=True))
        return update

    def _groups(self, grads: Grads) -> list[_Group]:
        device = next(iter(grads.values())).device
        sides = tuple(matrix_shape(g) for g in grads.values())
        return _groups_of(sides, self.chunk_side, self.coefficients, device)


class _Piece(NamedTuple):
    """Adjacent rows of blocks of one tensor."""

    tensor: int
    n: int
    m: int
    first: int
    last: int


class _Group(NamedTuple):
    """All blocks of one size, in slices that fit in a core's cache."""

    height: int
    width: int
    chosen: int  # number of coefficients sent per block
    slices: list[tuple[slice, list[_Piece]]]  # with the places of a slice's blocks in the group

    @property
    def size(self) -> int:
        return self.height * self.width

    @property
    def number(self) -> int:
        last, _ = self.slices[-1]
        return int(last.stop)

    @property
    def bytes_of_positions(self) -> int:
        """Return the size of a block's packed positions, in bytes."""
        return index_bytes(self.size, self.chosen)

    def parts(self, tensors: Sequence[Tensor]) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yield each slice, with its blocks in `tensors` as views `[down, across, h, w]`."""
        for part, pieces in self.slices:
            yield (
                part,
                [
                    tensors[p.tensor]
                    .view(p.n // self.height, self.height, p.m // self.width, self.width)[
                        p.first : p.last
                    ]
                    .transpose(1, 2)
                    for p in pieces
                ],
            )

    def transform(self, blocks: Sequence[Tensor]) -> Tensor:
        """Return the coefficients `[blocks, size]`."""
        rows = [x.reshape(-1, self.width) for x in blocks]
        x = rows[0] if len(rows) == 1 else torch.cat(rows)
        left, right = _cosines(self.height, x.device), _cosines(self.width, x.device)
        across = torch.mm(x, right.mT).view(-1, self.height, self.width)
        return torch.bmm(left.expand(len(across), -1, -1), across).flatten(1)

    def inverse(
        self, coefficients: Tensor, like: Sequence[Tensor], sign: bool = False
    ) -> list[Tensor]:
        """Return the values, or their signs, of coefficients `[blocks, size]`, shaped as `like`."""
        x = coefficients.view(-1, self.width)
        left, right = _cosines(self.height, x.device), _cosines(self.width, x.device)
        across = torch.mm(x, right).view(-1, self.height, self.width)
        values = torch.bmm(left.mT.expand(len(across), -1, -1), across)
        if sign:
            values.sign_()
        parts = values.split([y.shape[0] * y.shape[1] for y in like])
        return [part.view(y.shape) for part, y in zip(parts, like, strict=True)]

    def restore(self, chosen: Tensor, values: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        """Return the values of k coefficients per block, `[blocks, k]`, shaped as `like`."""
        coefficients = values.new_zeros(len(values), self.size).scatter_(1, chosen, values)
        return self.inverse(coefficients, like)


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _groups_of(
    sides: tuple[tuple[int, int], ...], most: int, coefficients: int, device: torch.device
) -> list[_Group]:
    """Return the blocks of matrices `[n, m]`, of at most `most` values in height and width."""
    groups: dict[tuple[int, int], list[tuple[slice, list[_Piece]]]] = {}
    for i, (n, m) in enumerate(sides):
        height, width = _divisor(n, most), _divisor(m, most)
        down, across = n // height, m // width
        slices = groups.setdefault((height, width), [])
        # A GPU takes all blocks at once, which costs fewer launches.
        fit = CACHED_VALUES // (height * width) if device.type == "cpu" else sys.maxsize
        step = min(down, max(1, fit // across))
        for first in range(0, down, step):
            last = min(down, first + step)
            count, end = (last - first) * across, slices[-1][0].stop if slices else 0
            if not slices or end - slices[-1][0].start + count > fit:
                slices.append((slice(end, end), []))
            slices[-1][1].append(_Piece(i, n, m, first, last))
            slices[-1] = slice(slices[-1][0].start, end + count), slices[-1][1]
    return [
        _Group(height, width, min(coefficients, height * width), slices)
        for (height, width), slices in groups.items()
    ]


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
