"""1-bit Adam: workers code momenta, and the optimizer gets the gradient that yields their mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Compressor, Grads, Properties, State, Step
from gcbench.core.fields import Checked, Share
from gcbench.core.wrappers.wrappers import DenseWarmup


@dataclass(frozen=True)
class MomentumCoding(Checked):
    """Code each worker's momentum, and return the gradient that gives an optimizer their mean.

    Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
    Speed", ICML 2021, algorithm 1. With the momentum m that all workers have, and worker i's
    gradient g_i and residual e_i:

        m_i = beta m + (1 - beta) g_i;   sends C(m_i + e_i);   e_i <- m_i + e_i - C(m_i + e_i)
        m' = mean over workers of C(m_i + e_i)
        update d = (m' - beta m) / (1 - beta);   m <- m'

    m is 0 before the first step. In the warm-up's steps the gradients are sent uncompressed, and
    m <- beta m + (1 - beta) mean of g_i: what is coded starts from the warm-up's momentum.

    From d, an optimizer with the same beta (`optimizer.betas=[beta, ...]`) computes the momentum
    beta m + (1 - beta) d = m'. The variance of 1-bit Adam stays that of the warm-up; this is the
    optimizer's task: `optimizer=frozen_adam optimizer.freeze_steps=T`, from which
    `compressor=onebit_adam` takes beta and T. SGD works as well, since it is linear in d; it has a
    momentum and no warm-up.

    Sends what C sends. `inner` provides C, e_i and the warm-up; in `compressor=onebit_adam` C is
    signs times the root mean square of a bucket (`ScaledSign` with `scale=rms`), which are as long
    as what they code. The goal is the momentum: the error of compression is that of m', as d has
    1 / (1 - beta) times its error.

    Differences from the paper: every worker receives all codes; the paper's server, which codes the
    mean again with its own residual, is `exchange=scatter_coded`. There is one scale per bucket,
    not one for all values.

    Differences from its code, DeepSpeed's OnebitAdam, which has the same scale, start and missing
    bias correction (it takes the argument, and ignores it): that has one scale per tensor, and per
    worker's shard at the server; pads tensors with zeros, which count in the scale; and has a mask
    for values that never had a gradient, which here do not move (`FrozenAdam`).

    With `momentum_start=zero`, m is 0 when the warm-up ends, and the optimizer's momentum decays
    beside what is coded: the first codes are of (1 - beta) g_i, which are smaller, and so are their
    errors.
    """

    inner: Compressor
    momentum: Share  # beta
    momentum_start: Literal["warmup", "zero"] = "warmup"

    @property
    def properties(self) -> Properties:
        inner = self.inner.properties
        return Properties(mean_linear=inner.mean_linear, scope=inner.scope)

    def refuse_optimizer(self, optimizer: Mapping[str, Any], dense_steps: int) -> None:
        """Raise ValueError for an optimizer that is not linear in d after `dense_steps`.

        The same holds for an optimizer that weighs the old momentum differently.
        """
        kind = optimizer.get("kind")
        if kind not in ("frozen_adam", "sgd", "powersgd"):
            raise ValueError(
                f"optimizer={kind or optimizer['_target_']}: this compressor codes a momentum, "
                "which needs an optimizer with a frozen variance; type optimizer=frozen_adam"
            )
        beta = optimizer["betas"][0] if kind == "frozen_adam" else optimizer["momentum"]
        if beta != self.momentum:
            key = "betas=[" if kind == "frozen_adam" else "momentum="
            raise ValueError(
                f"compressor.momentum={self.momentum:g} must equal the optimizer's, which is "
                f"{beta:g}; type optimizer.{key}{self.momentum:g}"
                + (f",{optimizer['betas'][1]:g}]" if kind == "frozen_adam" else "")
            )
        freeze_steps = optimizer.get("freeze_steps", dense_steps)
        if freeze_steps != dense_steps:
            raise ValueError(
                f"compressor.dense_steps={dense_steps} must equal the steps after which the "
                f"optimizer freezes its variance, which are {freeze_steps}; type "
                f"optimizer.freeze_steps={dense_steps}"
            )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        before = state.shared or {k: torch.zeros_like(g[:1]) for k, g in grads.items()}
        if isinstance(self.inner, DenseWarmup) and self.inner.covers(step):
            return self._warm_up(grads, before, state, comm, step)
        momenta = {k: torch.lerp(g, before[k], self.momentum) for k, g in grads.items()}
        out = self.inner.aggregate(momenta, state.inner or State(), comm, step)

        def to_gradients(momenta: Grads) -> Grads:
            return {
                k: (m - self.momentum * before[k]) / (1 - self.momentum) for k, m in momenta.items()
            }

        return out.with_goal_of(momenta)._replace(
            update=to_gradients(out.update),
            sent=lambda: to_gradients(out.sent()),
            state=State(shared=out.update, inner=out.state),
        )

    def _warm_up(
        self, grads: Grads, before: Grads, state: State, comm: Comm, step: Step
    ) -> Aggregated:
        """Return the mean gradient, and a state whose momentum follows that of the optimizer."""
        out = self.inner.aggregate(grads, state.inner or State(), comm, step)
        if self.momentum_start == "zero":
            return out._replace(state=state)
        momentum = {k: torch.lerp(d, before[k], self.momentum) for k, d in out.update.items()}
        return out._replace(state=State(shared=momentum, inner=out.state))
