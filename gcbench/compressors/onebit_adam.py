"""1-bit Adam: workers code momenta, and the optimizer gets the gradient that yields their mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gcbench.comm import Comm
from gcbench.compressors.base import Aggregated, Compressor, Grads, Properties, State, Step
from gcbench.knobs import Checked
from gcbench.settings.wrappers import CodedMomentum


@dataclass(frozen=True)
class MomentumCoding(Checked):
    """Code each worker's momentum, and return the gradient that gives an optimizer their mean.

    Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
    Speed", ICML 2021, algorithm 1. With the momentum m that all workers have, and worker i's
    gradient g_i and residual e_i:

        m_i = beta m + (1 - beta) g_i;   sends C(m_i + e_i);   e_i <- m_i + e_i - C(m_i + e_i)
        m' = mean over workers of C(m_i + e_i)
        update d = (m' - beta m) / (1 - beta);   m <- m'

    From d, an optimizer with the same beta (`optimizer.betas=[beta, ...]`) computes the momentum
    beta m + (1 - beta) d = m'. The momentum that it has from the warm-up decays in addition, since
    the update is linear. The variance of 1-bit Adam stays that of the warm-up; this is the
    optimizer's task: `optimizer=frozen_adam optimizer.freeze_steps=T`, from which
    `compressor=onebit_adam` takes beta and T. SGD works as well, since it is linear in d; it has a
    momentum and no warm-up.

    Sends what C sends. `inner` provides C and e_i; in `compressor=onebit_adam` it is error feedback
    around signs with one scale per bucket. m is 0 before the first step. The goal is the momentum:
    the error of compression is that of m', as d has 1 / (1 - beta) times its error.

    Differences from the paper: every worker receives all codes; the paper's server, which codes the
    mean again with its own residual, is `exchange=scatter_coded`. There is one scale per bucket.
    """

    inner: Compressor
    momentum: CodedMomentum  # beta

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
