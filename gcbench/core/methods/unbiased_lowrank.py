"""The unbiased low-rank estimator of the PowerSGD paper, as in its text and as in its code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, Properties, State, Step
from gcbench.core.fields import Checked, Count, example
from gcbench.core.methods.acpsgd import ACPSGD, draw_sketches
from gcbench.core.methods.matrices import matrix_shape, sides_of


@dataclass(frozen=True)
class UnbiasedLowRank(Checked):
    """Low-rank sketches without error feedback, as in PowerSGD's text and as in its code.

    A baseline of Vogels et al., NeurIPS 2019, section 4.1 and table 1. For a matrix M `[n,
    m]` (stacks are `gcbench.core.methods.matrices`), without error feedback:

    `variant=text`: with U `[m, r]`, drawn from N(0, 1/r) again every step, the same on all workers,

        P <- mean over workers of M U;   decode: P U^T,    E[U U^T] = I so that E[M U U^T] = M

    with E||M U U^T - M||^2 = (m + 1) / r ||M||^2. Sends r n floats per matrix, since U comes from
    a shared seed.

    `variant=alternating`, with which the authors' code made the published rows: half a power
    iteration per step. This is a projection, and therefore not unbiased. ACP-SGD is the same with
    error feedback, so that the code here is `ACPSGD`. Sends r n and r m floats in alternating
    steps: r (n + m) / 2 on average.

    Both are linear in M; r = min(rank, n, m).

    Differences from the paper and its code: see `ACPSGD`.
    """

    rank: Annotated[Count, example(2)]
    """columns r of the factors [PowerSGD, algorithm 1]"""
    variant: Literal["text", "alternating"] = "text"
    """the sketch as printed, or half a power iteration a step as published [PowerSGD, section
    4.1]"""

    @property
    def properties(self) -> Properties:
        return Properties(
            unbiased=self.variant == "text",
            contractive=self.variant == "alternating",
            mean_linear=True,
            turns=2 if self.variant == "alternating" else 1,
        )

    def values_sent(self, shape: Sequence[int]) -> float:
        if self.variant == "alternating":
            return ACPSGD(self.rank).values_sent(shape)
        n, m = sides_of(shape)
        return min(self.rank, n, m) * n

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        if self.variant == "alternating":
            return ACPSGD(self.rank).aggregate(grads, state, comm, step)
        ms = {k: g.reshape(-1, *matrix_shape(g)) for k, g in grads.items()}  # [w, n, m]
        sketches = draw_sketches(ms, self.rank, step)
        us = {k: u / u.shape[2] ** 0.5 for k, u in sketches.items()}  # [1, m, r]
        worker_ps = {k: m @ us[k] for k, m in ms.items()}
        ps = dict(zip(ms, comm.mean(list(worker_ps.values())), strict=True))

        def decode(factors: Grads) -> Grads:
            return {k: (p @ us[k].mT).reshape(-1, *grads[k].shape[1:]) for k, p in factors.items()}

        return Aggregated(decode(ps), lambda: decode(worker_ps), state)
