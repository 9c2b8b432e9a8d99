"""Dion and Dion2: orthonormal updates from a momentum, of which workers exchange a part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gcbench.core.codecs.newton_schulz import orthonormalize
from gcbench.core.codecs.power_iteration import (
    normalize,
    orthogonalize,
    product,
    product_and_rest,
    stack,
    times,
    transposed_times,
)
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, Properties, State, Step, add_scaled, zeros_of
from gcbench.core.fields import Checked, Count, Fraction, Share, example
from gcbench.core.methods.matrices import matrix_shape, sides_of
from gcbench.core.methods.powersgd import (
    by_shape,
    continue_q,
    matrices_of,
    qs_by_name,
    shapes_of,
    tensors_of,
)

# Columns of R below this fraction of the largest one count as noise: rounding errors of B reach
# 1e-6 of it. If a gradient has a lower rank than r, such as that of a layer before a softmax, some
# columns have nothing else.
_NOISE = 1e-5


@dataclass(frozen=True)
class Dion(Checked):
    """An orthonormal update of rank r, from a momentum that keeps what was not sent.

    Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan and Langford, "Dion: Distributed Orthonormalized
    Updates", 2025 (arXiv 2504.05295), with compressed data-parallel synchronization. Every tensor
    is a matrix `[n, m]` with n its first dimension, or a stack of matrices
    (`gcbench.core.methods.matrices`). At worker i with gradient G_i and momentum M_i, and with the
    same Q `[m, r]` on all workers:

        B_i = M_i + G_i
        P <- mean over workers of B_i Q;   P <- orthogonalize(P);   R = mean over workers of B_i^T P
        M_i <- B_i - (1 - mu) P R^T
        Q <- R with columns of norm 1
        update = sqrt(n / m) P Q^T

    The momentum takes the place of an error-feedback residual: it keeps all of the part of B that
    is outside the span of P. The M_i differ between workers; their mean is the same as a single
    momentum of the mean gradient, since everything except the last line is linear in B.

    The r singular values of the update are about sqrt(n / m), whatever those of the gradient: the
    learning rate alone sets the length of a step. `optimizer=dion` applies the update unchanged,
    and Lion to vectors, which are sent uncompressed (`runner.train.optimizers`).

    Sends r (n + m) floats per matrix in two all-reduces, r = min(rank, n, m), as PowerSGD does.

    Differences from the paper: the rank is a number, not a fraction of the smaller side. P becomes
    orthonormal by Cholesky's decomposition in float64, twice, as in a randomized Cholesky QR, but
    without its random sketch (with few columns on a CPU, by Gram-Schmidt). Columns of R
    that are rounding noise, as when B has a lower rank than r, count as zero; the paper makes them
    as long as the others. Differences from its code, microsoft/dion: the code transposes wide
    matrices, so that the longer side is the orthonormal one, adds 1e-8 to norms, and uses Lion
    for embeddings and the last layer, too, which are matrices here. A gradient that is
    smaller than its factors is sent in their place, there and, with `min_ratio=1`, here.
    """

    rank: Annotated[Count, example(2)]
    """columns r of the factors [PowerSGD, algorithm 1]"""
    momentum: Annotated[Share, example(0.9)]
    """share mu of what was sent that stays in each worker's momentum [Dion, algorithm 1]"""
    properties: ClassVar[Properties] = Properties(mean_linear=True, direction=True)

    def values_sent(self, shape: Sequence[int]) -> float:
        n, m = sides_of(shape)
        return min(self.rank, n, m) * (n + m)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        ordered = by_shape(grads)
        shapes = shapes_of(ordered, self.rank)
        before = state.per_worker or zeros_of(ordered)
        sums = add_scaled({k: before[k] for k in ordered}, ordered, in_place=step.in_place)
        bs = stack(matrices_of(sums, shapes), shapes)
        worker_p = times(bs, continue_q(state.shared, ordered, shapes, step), shapes)
        p = orthogonalize(comm.mean([worker_p])[0], shapes)
        worker_r = transposed_times(bs, p, shapes)
        r = comm.mean([worker_r])[0]
        scaled_q = normalize(r, _NOISE, shapes)
        updates = product_and_rest(p, scaled_q, p, (1 - self.momentum) * r, bs, shapes)
        return Aggregated(
            tensors_of(updates, grads),
            lambda: tensors_of(product(p, worker_r, shapes), grads),
            State(
                shared=qs_by_name(scaled_q, shapes, grads),
                per_worker=tensors_of(bs, grads),
            ),
        )


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
