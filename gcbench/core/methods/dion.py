"""Dion: an orthonormal low-rank update from a momentum, whose factors workers exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

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
from gcbench.core.fields import Checked, Count, Share, example
from gcbench.core.methods.matrices import sides_of
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
        before = state.per_worker or zeros_of(grads)
        bs = stack(matrices_of(add_scaled(ordered, before), shapes), shapes)
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
