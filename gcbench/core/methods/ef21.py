"""EF21: workers send compressed changes of their gradients or momenta, which all workers add up."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
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
    zeros_of,
)
from gcbench.core.fields import Checked, Share


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

    With `exchange=scatter_coded` the way back is coded, too: EF21-BC of Fatkhullin et al., "EF21
    with Bells & Whistles", 2021 (arXiv 2110.03294). The owner of a shard of the mean of all h_i
    codes how it differs from h, what all workers have for it. That difference is the owner's
    residual of what it has sent: all of it is kept, even if C is unbiased.

        h <- h + C(mean over workers of h_i - h);   update = h

    Differences from the papers: the server is all workers. With other exchanges, each of them keeps
    h and adds the same changes to it.
    """

    inner: Compressor

    @property
    def properties(self) -> Properties:
        inner = self.inner.properties
        return Properties(
            mean_linear=inner.mean_linear, scope=inner.scope, divisible=inner.divisible
        )

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        estimates = state.per_worker or zeros_of(grads)
        differences = add_scaled(grads, estimates, -1)
        out = self.inner.aggregate(differences, state.inner or State(), comm, step)
        sent = out.sent()
        refuse_other_tensors(sent, grads)
        newer = add_scaled(estimates, sent, in_place=step.in_place)
        before = state.shared
        mean = add_scaled(before, out.update, in_place=step.in_place) if before else out.update
        # The update gets its own tensors, because an optimizer may change them in place.
        update = unflatten(flatten(mean), mean)
        return out._replace(
            update=update,
            sent=lambda: newer,
            state=State(shared=mean, per_worker=newer, inner=out.state),
            goal=None,
        )


@dataclass(frozen=True)
class WorkerMomentum(Checked):
    """Pass on a momentum of each worker in place of its gradient.

    Gruntkowska, Gaponov, Tovmasyan and Richtarik, "Error Feedback for Muon and Friends", 2025
    (arXiv 2510.00643), EF21-Muon: at worker i with gradient g_i and momentum m_i, and with EF21
    inside, which keeps h_i and h,

        m_i <- mu m_i + (1 - mu) g_i
        c_i = C(m_i - h_i);   h_i <- h_i + c_i;   h <- h + mean over workers of c_i
        x <- x - t LMO(h)                                  by the optimizer

    where LMO(h) is U V^T for a matrix h = U S V^T, and sign(h) for tensors with the largest
    magnitude as their norm: `optimizer=muon optimizer.momentum=0 optimizer.nesterov=false`, whose
    AdamW takes signs with `betas: [0.0, 0.0]`. All m_i, h_i and h are 0 before the first step. With
    SGD in the place of Muon this is EF21-SGDM (Fatkhullin, Tyurin and Richtarik, "Momentum Provably
    Improves Error Feedback!", NeurIPS 2023).

    Sends what is inside sends. The goal is the momentum, by which the error of compression is
    measured.

    Differences from the paper: its server takes the step, and sends how the model differs from what
    workers have, w <- w + C(x - w) (EF21-P). There is no server here, and every worker takes the
    step: with `exchange=scatter_coded`, what is coded on the way back is h (`EF21`), and all have
    the same x. On a quadratic, both end alike. With `exchange=scatter` or `gather` nothing is lost
    on the way back, and this is the paper's method with an uncoded model. Its beta is 1 - mu.
    """

    inner: Compressor
    momentum: Share  # mu

    @property
    def properties(self) -> Properties:
        return self.inner.properties

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        before = state.per_worker or zeros_of(grads)
        # Not in place: with double buffering, the goal is read after the next step has begun.
        averages = torch._foreach_lerp(
            list(grads.values()), [before[k] for k in grads], self.momentum
        )
        momenta = dict(zip(grads, averages, strict=True))
        out = self.inner.aggregate(momenta, state.inner or State(), comm, step)
        return out.with_goal_of(momenta)._replace(state=State(per_worker=momenta, inner=out.state))
