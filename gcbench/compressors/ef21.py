"""EF21: workers send compressed changes of their gradients, which all workers add up."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gcbench.comm.collectives import Comm
from gcbench.compressors.base import (
    Aggregated,
    Compressor,
    Grads,
    Properties,
    State,
    Step,
    add_scaled,
    flatten,
    refuse_other_tensors,
    unflatten,
)


@dataclass(frozen=True)
class EF21:
    """Compress the difference of each gradient from its estimate, and apply the mean estimate.

    Richtarik, Sokolov and Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically
    Faster Error Feedback", NeurIPS 2021, algorithm 2. At worker i with gradient g_i and
    its estimate h_i, the sum of what the worker sent:

        c_i = C(g_i - h_i);   h_i <- h_i + c_i;   h <- h + mean over workers of c_i
        update = h, which is the mean of all h_i

    For a contractive C, E|C(v) - v|^2 <= (1 - delta) |v|^2, h_i approaches g_i as g_i settles, so
    that the residual vanishes at a minimum; that of plain error feedback does not if the workers'
    gradients differ. Before the first step, h_i and h are 0, so that the first update is the mean
    of C(g_i), as in the paper's experiments.

    Sends what C sends. Each worker keeps h_i and h. The goal stays the gradient g_i, not the
    difference that is coded.

    Differences from the paper: there is no server to keep h; every worker keeps it and adds the
    same changes to it.
    """

    inner: Compressor

    @property
    def properties(self) -> Properties:
        inner = self.inner.properties
        return Properties(
            mean_linear=inner.mean_linear, scope=inner.scope, divisible=inner.divisible
        )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        estimates = state.per_worker or {k: torch.zeros_like(g) for k, g in grads.items()}
        differences = add_scaled(grads, estimates, -1)
        out = self.inner.aggregate(differences, state.inner or State(), comm, step)
        sent = out.sent()
        refuse_other_tensors(sent, grads)
        newer = add_scaled(estimates, sent)
        before = state.shared
        update = add_scaled(out.update, before) if before else out.update
        # The state gets its own tensors, because an optimizer may change the update in place.
        mean = unflatten(flatten(update), update)
        return out._replace(
            update=update,
            sent=lambda: newer,
            state=State(shared=mean, per_worker=newer, inner=out.state),
            goal=None,
        )
