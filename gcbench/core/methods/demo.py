"""DeMo: the strongest frequencies of a momentum, which keeps what was not sent."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcbench.core.codecs.indices import Groups, largest_values, pack_indices, unpack_indices
from gcbench.core.codecs.kernels import CACHED_VALUES
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, Properties, State, Step, flatten_each
from gcbench.core.fields import Checked, Count, Neutral, Share, example
from gcbench.core.methods.matrices import matrix_shape


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

    The momentum is kept as its coefficients D m, so that sent ones become zero in place; it takes
    the place of an error-feedback residual. The update consists of -1, 0 and 1,
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

    coefficients: Annotated[Count, example(32)]
    """frequencies K of a block that are sent, those of largest magnitude [DeMo, section 3]"""
    momentum: Annotated[Share, example(0.9)]
    """weight beta of the old momentum, from which what is sent is taken [DeMo, section 3]"""
    chunk_side: Annotated[Count, example(64)] = 64
    """largest side s of a block of a matrix, whose frequencies are sent [DeMo, section 3]"""
    combine: Annotated[Literal["mean", "senders"], Neutral("mean")] = "mean"
    properties: ClassVar[Properties] = Properties(direction=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        layout = self._layout(grads)
        flat = flatten_each(grads)
        momenta = {k: g.new_empty(g.shape) for k, g in grads.items()}
        before, after = flatten_each(state.per_worker), flatten_each(momenta)
        shape = len(flat[0]), len(layout.starts)
        chosen, values = flat[0].new_empty(shape, dtype=torch.int64), flat[0].new_empty(shape)
        # One worker at a time: a batched product would round differently from a single one.
        for row in range(len(chosen)):
            for part in layout.parts:
                x = part.transform([g[row] for g in flat])
                coefficients = x[0].split([p.size for p in part.pieces])
                if before:
                    kept = part.coefficients([m[row] for m in before])
                    torch._foreach_add_(coefficients, kept, alpha=self.momentum)
                found, largest = largest_values(x, part.sizes, part.counts)
                chosen[row, part.values], values[row, part.values] = found[0], largest[0]
                x.scatter_(1, found, 0)
                torch._foreach_copy_(part.coefficients([m[row] for m in after]), coefficients)
        packed = pack_indices(chosen - layout.starts, layout.groups)
        positions, sent_values = comm.gather([packed, values])

        def sent() -> Grads:
            rows = [
                self._restore(*of_worker, layout, grads)
                for of_worker in zip(chosen.split(1), values.split(1), strict=True)
            ]
            return {k: torch.cat([row[k] for row in rows]) for k in grads}

        update = self._restore(
            unpack_indices(positions, layout.groups) + layout.starts,
            sent_values,
            layout,
            grads,
            signs=True,
        )
        return Aggregated(update, sent, State(per_worker=momenta))

    def _restore(
        self, chosen: Tensor, values: Tensor, layout: _Layout, like: Grads, signs: bool = False
    ) -> Grads:
        """Return the tensors `[1, ...]`, or their signs, of all workers' coefficients together."""
        out = {k: values.new_empty(1, *g.shape[1:]) for k, g in like.items()}
        for part in layout.parts:
            total = values.new_zeros(1, sum(part.sizes))
            index = chosen[:, part.values]
            for of_worker in zip(index.split(1), values[:, part.values].split(1), strict=True):
                total.scatter_add_(1, *of_worker)
            if self.combine == "senders":
                one = total.new_ones(()).expand(1, index.numel())
                senders = torch.zeros_like(total).scatter_add_(1, index.reshape(1, -1), one)
                total /= senders.clamp_min_(1)
            part.write_inverse(total, [x.view(-1) for x in out.values()], signs)
        return out

    def _layout(self, grads: Grads) -> _Layout:
        device = next(iter(grads.values())).device
        sides = tuple(matrix_shape(g) for g in grads.values())
        return _layout_of(sides, self.chunk_side, self.coefficients, device)


class _Piece(NamedTuple):
    """Adjacent rows of blocks of one tensor, from `first` to before `last`."""

    tensor: int
    down: int
    height: int
    across: int
    width: int
    first: int
    last: int

    @property
    def size(self) -> int:
        return (self.last - self.first) * self.height * self.across * self.width

    def blocks(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the blocks of flat tensors as a view `[down, across, height, width]`."""
        x = tensors[self.tensor].view(self.down, self.height, self.across, self.width)
        return x[self.first : self.last].transpose(1, 2)


class _Part(NamedTuple):
    """Blocks that fit in a core's cache, those of one shape side by side; on a GPU all blocks."""

    pieces: list[_Piece]
    sizes: list[int]  # of blocks
    counts: list[int]  # how many coefficients of each block are sent
    values: slice  # the places of these coefficients in the message

    def coefficients(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return each piece of flat tensors that have coefficients, block by block."""
        each = [(tensors[p.tensor], p.across * p.height * p.width, p) for p in self.pieces]
        return [x[p.first * row : p.last * row] for x, row, p in each]

    def transform(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the coefficients `[1, values]` of flat tensors."""
        each = [_apply(x, _cosines).flatten() for x in self._by_shape(tensors)]
        return (each[0] if len(each) == 1 else torch.cat(each)).unsqueeze(0)

    def write_inverse(self, coefficients: Tensor, tensors: Sequence[Tensor], signs: bool) -> None:
        """Write the values, or their signs, of coefficients `[1, values]` into flat tensors."""
        first = 0
        for (height, width), run in self._runs():
            size = sum(p.size for p in run)
            x = coefficients[0, first : first + size].view(-1, height, width)
            values = _apply(x, _inverse_cosines)
            blocks = [p.blocks(tensors) for p in run]
            if signs:
                values.sign_()
            parts = values.split([y.shape[0] * y.shape[1] for y in blocks])
            torch._foreach_copy_(
                blocks, [v.view(y.shape) for v, y in zip(parts, blocks, strict=True)]
            )
            first += size

    def _by_shape(self, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
        for _, run in self._runs():
            blocks = [p.blocks(tensors).flatten(0, 1) for p in run]
            yield blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def _runs(self) -> Iterator[tuple[tuple[int, int], list[_Piece]]]:
        for shape, run in groupby(self.pieces, lambda p: (p.height, p.width)):
            yield shape, list(run)


class _Layout(NamedTuple):
    """All blocks, those of one shape side by side."""

    parts: list[_Part]
    groups: Groups
    starts: Tensor  # [values]: where the block of each coefficient that is sent begins in its part


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _layout_of(
    sides: tuple[tuple[int, int], ...], most: int, coefficients: int, device: torch.device
) -> _Layout:
    """Return the blocks of matrices `[n, m]`, of at most `most` values in height and width."""
    shapes: dict[tuple[int, int], list[int]] = {}
    for i, (n, m) in enumerate(sides):
        shapes.setdefault((_divisor(n, most), _divisor(m, most)), []).append(i)
    # A GPU takes all blocks at once, which costs fewer launches.
    fit = CACHED_VALUES if device.type == "cpu" else sys.maxsize
    parts: list[list[_Piece]] = [[]]
    for (height, width), tensors in shapes.items():
        for i in tensors:
            down, across = sides[i][0] // height, sides[i][1] // width
            step = min(down, max(1, fit // (height * across * width)))
            for first in range(0, down, step):
                piece = _Piece(i, down, height, across, width, first, min(down, first + step))
                if parts[-1] and sum(p.size for p in parts[-1]) + piece.size > fit:
                    parts.append([])
                parts[-1].append(piece)
    done, values, starts = [], 0, [np.empty(0, dtype=np.int64)]
    for pieces in parts:
        sizes = [p.height * p.width for p in pieces for _ in range(p.size // (p.height * p.width))]
        counts = [min(coefficients, size) for size in sizes]
        done.append(_Part(pieces, sizes, counts, slice(values, values + sum(counts))))
        values += sum(counts)
        starts.append(np.cumsum([0, *sizes[:-1]]).repeat(counts))
    groups = tuple(
        [
            (sum(sides[i][0] * sides[i][1] for i in tensors) // size, min(coefficients, size), size)
            for (height, width), tensors in shapes.items()
            for size in [height * width]
        ]
    )
    return _Layout(done, groups, torch.tensor(np.concatenate(starts), device=device))


def _apply(x: Tensor, cosines: Callable[[int, torch.device], Tensor]) -> Tensor:
    """Return blocks `[blocks, height, width]`, transformed along both sides."""
    _, height, width = x.shape
    if width == 1:
        return torch.mm(x.reshape(-1, height), cosines(height, x.device).mT).view(x.shape)
    across = torch.mm(x.reshape(-1, width), cosines(width, x.device).mT).view(x.shape)
    return torch.bmm(cosines(height, x.device).expand(len(x), -1, -1), across)


@lru_cache(maxsize=64)
def _cosines(n: int, device: torch.device) -> Tensor:
    """Return the orthonormal matrix `[n, n]` of the discrete cosine transform (DCT-II)."""
    place = torch.arange(n, dtype=torch.float64)
    waves = torch.cos(math.pi / n * (place + 0.5) * place.unsqueeze(1)) * (2 / n) ** 0.5
    waves[0] *= 0.5**0.5
    return waves.float().to(device)


def _inverse_cosines(n: int, device: torch.device) -> Tensor:
    return _cosines(n, device).mT


@lru_cache(maxsize=1024)
def _divisor(n: int, most: int) -> int:
    """Return the largest divisor of n that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)
