"""The unbiased low-rank estimator that PowerSGD is compared with, as printed and as published."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gcbench.codecs.low_rank import orthogonalize
from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Grads, Properties, State, Step, unflatten
from gcbench.compressors.powersgd import matrix_shape
from gcbench.knobs import Checked
from gcbench.method_settings import LowRankVariant, Rank


@dataclass(frozen=True)
class UnbiasedLowRank(Checked):
    """Low-rank sketches without error feedback, as printed and as published.

    The comparison of Vogels et al., NeurIPS 2019, section 4.1 and table 1. For a matrix M `[n,
    m]`, without error feedback:

    `variant=text`, as printed: with U `[m, r]`, values drawn from N(0, 1/r) anew every step and
    alike on all workers,

        P <- mean over workers of M U;   decode: P U^T,    E[U U^T] = I so that E[M U U^T] = M

    with E||M U U^T - M||^2 = (m + 1) / r ||M||^2. Sends r n floats a matrix, as U comes from a
    shared seed.

    `variant=alternating`, with which the authors' code made the published rows: half a power
    iteration a step,

        even steps: Q <- orthogonalize(Q);  P <- mean of M Q
        odd steps:  P <- orthogonalize(P);  Q <- mean of M^T P

    decode: P Q^T. A projection, and so not unbiased. Sends r n and r m floats in turn: r (n + m) /
    2 on average.

    Both are linear in M; r = min(rank, n, m).

    Differences from the paper and its code: a factor column that has become zero is drawn anew, as
    in our PowerSGD.
    """

    rank: Rank
    variant: LowRankVariant = "text"

    @property
    def properties(self) -> Properties:
        return Properties(
            unbiased=self.variant == "text",
            contractive=self.variant == "alternating",
            mean_linear=True,
        )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        flipped = self.variant == "alternating" and step.number % 2 == 1  # sketches M^T
        ms = {k: _matrix(g).mT if flipped else _matrix(g) for k, g in grads.items()}  # [w, n, m]
        us = self._sketches(ms, state, step)  # [1, m, r]
        worker_ps = {k: m @ us[k] for k, m in ms.items()}
        ps = dict(zip(ms, comm.mean(list(worker_ps.values())), strict=True))

        def decode(factors: Grads) -> Grads:
            products = {k: p @ us[k].mT for k, p in factors.items()}
            return {
                k: (x.mT if flipped else x).reshape(-1, *grads[k].shape[1:])
                for k, x in products.items()
            }

        state = State(shared=ps) if self.variant == "alternating" else state
        return Aggregated(decode(ps), lambda: decode(worker_ps), state)

    def _sketches(self, ms: Grads, state: State, step: Step) -> Grads:
        like = {
            k: m[:1].new_empty(1, m.shape[2], min(self.rank, *m.shape[1:])) for k, m in ms.items()
        }
        sizes = {k: u.numel() for k, u in like.items()}
        noise = step.noise("unbiased_lowrank", sizes, next(iter(like.values())).device, shared=True)
        fresh = unflatten(noise.normal(), like)
        if self.variant == "text":
            return {k: u / u.shape[2] ** 0.5 for k, u in fresh.items()}
        last = state.shared or fresh
        return {
            k: orthogonalize(torch.where(last[k].any(1, keepdim=True), last[k], u))
            for k, u in fresh.items()
        }


def _matrix(g: Tensor) -> Tensor:
    return g.reshape(-1, *matrix_shape(g))
