"""Dion2: a part of the rows of a momentum, which workers exchange and make orthonormal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gcbench.core.codecs.newton_schulz import orthonormalize
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, Properties, State, Step, add_scaled, zeros_of
from gcbench.core.fields import Checked, Fraction, Share, example
from gcbench.core.methods.matrices import matrix_shape, sides_of


@dataclass(frozen=True)
class Dion2(Checked):
    """An orthonormal update of the largest rows of a momentum that keeps the others.

    Ahn, Amsel and Langford, "Dion2: A Simple Method to Shrink Matrix in Muon", 2025 (arXiv
    2512.16928), of which the authors say that it takes Dion's place. Every tensor is a matrix
    `[n, m]`, or a stack of matrices (`core.methods.matrices`). At worker i with gradient G_i
    and momentum M_i, if n <= m:

        M_i <- M_i + G_i
        S = the ceil(fraction n) rows j with the largest mean over workers of |row j of M_i|_1
        B = mean over workers of M_i[S];   M_i[S] <- mu M_i[S]
        update[S] = sqrt(n / m) Newton-Schulz(B);   update elsewhere = 0

    If n > m, rows are columns. The decay of what was applied is the error feedback: all other rows
    stay in the momentum. `optimizer=dion` applies the update unchanged, and Lion to vectors, which
    are sent uncompressed. With fraction 1 it is Muon with the momentum M <- mu M + G.

    Sends n floats (the norms, unless fraction is 1) and fraction n m, in two all-reduces.

    Differences from the paper and its code, microsoft/dion: there every worker has the momentum of
    the mean gradient, which is sent whole, or rows of a sharded one; here workers have their own,
    whose mean is the same, but the norms of which are not those of the mean. Newton-Schulz has
    Jordan's polynomial, in fp32 (Polar Express in the code, in bfloat16). Embeddings and the last
    layer are matrices here, too, and have Lion or AdamW there.
    """

    fraction: Annotated[Fraction, example(0.01)]
    """share of the rows that is sent"""
    momentum: Annotated[Share, example(0.9)]
    """share mu of what was sent that stays in each worker's momentum [Dion, algorithm 1]"""
    properties: ClassVar[Properties] = Properties(direction=True)

    def values_sent(self, shape: Sequence[int]) -> float:
        short, long = sorted(sides_of(shape))
        count = self._count(short)
        return count * long + (short if count < short else 0)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        before = state.per_worker or zeros_of(grads)
        momenta = add_scaled(grads, before)
        rows = [_rows(x) for x in momenta.values()]  # [w, short, long]
        chosen = self._choose(rows, comm)
        taken = [x[:, index] for x, index in zip(rows, chosen, strict=True)]
        for x, index, part in zip(rows, chosen, taken, strict=True):
            x[:, index] = self.momentum * part
        means = _mean_together(taken, comm)
        update = {k: torch.zeros_like(g[:1]) for k, g in grads.items()}
        for g, index, mean in zip(update.values(), chosen, means, strict=True):
            n, m = matrix_shape(g)
            _rows(g)[0, index] = math.sqrt(n / m) * orthonormalize(mean[0])

        def sent() -> Grads:
            out = zeros_of(grads)
            for g, index, part in zip(out.values(), chosen, taken, strict=True):
                _rows(g)[:, index] = part
            return out

        return Aggregated(update, sent, State(per_worker=momenta))

    def _choose(self, rows: Sequence[Tensor], comm: Comm) -> list[Tensor]:
        """Return the indices of the rows of each matrix that are sent, in ascending order."""
        some = [x for x in rows if self._count(x.shape[1]) < x.shape[1]]
        norms = iter(_mean_together([x.abs().sum(2) for x in some], comm) if some else [])
        every = [torch.arange(x.shape[1], device=x.device) for x in rows]
        return [
            next(norms)[0].topk(self._count(len(index))).indices.sort().values
            if self._count(len(index)) < len(index)
            else index
            for index in every
        ]

    def _count(self, short: int) -> int:
        return max(1, math.ceil(self.fraction * short))


def _rows(x: Tensor) -> Tensor:
    """Return a view `[w, short, long]` of a tensor `[w, ...]` as matrices with short columns."""
    n, m = matrix_shape(x)
    matrices = x.view(len(x), n, m)
    return matrices if n <= m else matrices.mT


def _mean_together(parts: Sequence[Tensor], comm: Comm) -> list[Tensor]:
    """Return the means of all workers' tensors `[w, ...]`, `[1, ...]`, from one all-reduce."""
    (mean,) = comm.mean([torch.cat([part.flatten(1) for part in parts], 1)])
    sizes = [part[0].numel() for part in parts]
    pairs = zip(mean.split(sizes, 1), parts, strict=True)
    return [flat.view(1, *part.shape[1:]) for flat, part in pairs]
