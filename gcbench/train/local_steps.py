"""Local steps: workers exchange how far they have come, every H steps, instead of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gcbench.compressors import Compressor, Grads, offsets_of, parts_of, sizes_of
from gcbench.compressors.base import Sizes
from gcbench.compressors.onebit_adam import MomentumCoding
from gcbench.compressors.wrappers import NormClipping
from gcbench.data import Data
from gcbench.knobs import Checked
from gcbench.settings import (
    Every,
    Fragments,
    InnerClipNorm,
    OuterLr,
    OuterMomentum,
    OuterNesterov,
)
from gcbench.train.estimators import batch_of
from gcbench.train.replica import Replica
from gcbench.train.run import Estimator, InnerModel, MakeOptimizer, Optimizers, Progress, Run
from gcbench.train.schedules import CONSTANT, steps_of_run


class InnerSteps(Estimator):
    """Base of estimators whose workers have their own parameters between exchanges."""

    worker_copies: ClassVar[int] = 3  # the parameters, and the moments of Adam

    def build_inner(self, replica: Replica, make_optimizer: MakeOptimizer) -> list[InnerModel]:
        """Return a copy of the model for each worker here, with the optimizer that was typed."""
        models = [deepcopy(replica.model) for _ in replica.workers]
        return [
            InnerModel(
                {name: p for name, p in model.named_parameters() if p.requires_grad},
                *make_optimizer(model),
            )
            for model in models
        ]

    def backward(self, run: Run, progress: Progress) -> Tensor:
        """Fill the rows with gradients at each worker's parameters; return the mean losses."""
        replica, key = run.replica, (run.seed, progress.step)
        replica.begin()
        losses = []
        for row, inner in enumerate(run.inner):
            batch = batch_of(run, progress.step, row)
            with replica.parameters_at([p.data for p in inner.parameters.values()]):
                losses.append(replica.backward(row, batch, key, run.clock))
        run.clock.lap("update")
        return torch.stack(losses)

    def step_inner(
        self, run: Run, progress: Progress, grads: Grads, clip_norm: float | None = None
    ) -> None:
        """Let each worker take a step along its row of `grads`, or along the one they share."""
        # Clipping, and an optimizer in place, would change what is recorded.
        recorded = progress.step in (run.settings.record_gradients or ())
        for row, inner in enumerate(run.inner):
            for name, p in inner.parameters.items():
                own = grads[name][row if len(grads[name]) > 1 else 0]
                p.grad = own.to(p.dtype, copy=recorded)
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(inner.parameters.values(), clip_norm)
            inner.schedule.set_rates(inner.optimizer, progress.step)
            inner.optimizer.step()


@dataclass(frozen=True)
class LocalSteps(InnerSteps, Checked):
    """DiLoCo, whose workers train by themselves between exchanges of their pseudo-gradients.

    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
    arXiv:2311.08105, algorithm 1; in fragments Douillard et al., "Streaming DiLoCo with overlapping
    communication: Towards a Distributed Free Lunch", arXiv:2501.18512.

    With x the parameters that all workers share, which are tested and kept, x_i those of worker i,
    and f its inner optimizer, `optimizer=` with `schedule=`, in every step t = 1, 2, ...:

        x_i, s_i <- f(x_i, s_i, g_i(x_i); lr_t)             each worker on a batch of its own

    and where H divides t, with eta the outer rate and mu the outer momentum:

        d = Aggregate(x - x_1, ..., x - x_W)                the run's compressor, whichever it is
        m <- mu m + d;   x <- x - eta (d + mu m)            (eta m without `outer_nesterov`)
        x_i <- x

    The states s_i stay with their workers. The paper's f is AdamW, eta = 0.7, mu = 0.9, H = 500.
    What a compressor remembers (error feedback, factors) has the unit of a pseudo-gradient x - x_i,
    which is a difference of parameters. H = 1 with plain SGD of rate a inside, eta = 1 and mu = 0
    is SGD: x - mean of (x - (x - a g_i)), which rounds otherwise than x - a (mean of g_i).

    In P fragments, which are consecutive tensors of about equally many values, the k-th (from 0) is
    exchanged where H divides t - floor(k H / P), with the same three lines for its part of x: the
    same bits in H steps, but a P-th of them at a time.

    Sends what the compressor sends for a gradient, once in H steps.

    Differences from the papers: steps after the last exchange of a run are in no x. A fragment is
    exchanged between two steps, not under the next ones, and takes the place of x_i, with which the
    streaming paper mixes it; its fragments take layers in turn, not consecutive ones.
    """

    every: Every
    fragments: Fragments = 1
    outer_lr: OuterLr = 0.7
    outer_momentum: OuterMomentum = 0.9
    outer_nesterov: OuterNesterov = True
    clip_norm: InnerClipNorm = None

    @property
    def period(self) -> int:
        return -(-self.every // self.fragments)

    def refuse(
        self, model: nn.Module, data: Data, compressor: Compressor, config: Mapping[str, Any]
    ) -> None:
        """Raise ValueError where nothing would be exchanged, or something else than is meant."""
        steps = steps_of_run(config["trainer"], data)
        if steps < self.every:
            raise ValueError(
                f"estimator.every={self.every}: the run has {steps} steps, in which not every "
                f"parameter would be exchanged; type estimator.every={steps} or fewer"
            )
        refuse_momentum(compressor)
        for part in parts_of(compressor):
            if isinstance(part, NormClipping):
                norm = f"{part.clip_norm:g}"
                raise ValueError(
                    f"clip_norm={norm} scales what is exchanged, which estimator=local_steps makes "
                    f"of {self.every} steps; type clip_norm=null estimator.clip_norm={norm}, which "
                    "scales the gradients of these steps"
                )
        if self.outer_nesterov and not self.outer_momentum:
            raise ValueError(
                f"estimator.outer_momentum={self.outer_momentum:g}: estimator.outer_nesterov=true "
                "looks ahead along the momentum; type estimator.outer_nesterov=false, too"
            )
        if self.fragments > 1:
            self._refuse_fragments(model, compressor, config["trainer"])

    def _refuse_fragments(
        self, model: nn.Module, compressor: Compressor, trainer: Mapping[str, Any]
    ) -> None:
        if self.fragments > self.every:
            raise ValueError(
                f"estimator.fragments={self.fragments}: fragments are exchanged in different steps "
                f"of estimator.every={self.every}; type estimator.fragments={self.every} or fewer"
            )
        tensors = sum(p.requires_grad for p in model.parameters())
        if self.fragments > tensors:
            raise ValueError(
                f"estimator.fragments={self.fragments}: the model has {tensors} tensors; type "
                f"estimator.fragments={tensors} or fewer"
            )
        if compressor.properties.scope == "global":
            raise ValueError(
                f"estimator.fragments={self.fragments} sends tensors in parts, and this method "
                "must see all of them at once (its scope is global, see gcbench methods); type "
                "estimator.fragments=1"
            )
        if trainer["record_gradients"]:
            raise ValueError(
                f"trainer.record_gradients={trainer['record_gradients']}: in no step of "
                f"estimator.fragments={self.fragments} all tensors are exchanged; type "
                "trainer.record_gradients=null, or estimator.fragments=1"
            )

    def build_optimizers(self, replica: Replica, make_optimizer: MakeOptimizer) -> Optimizers:
        """Return the outer optimizer, which applies aggregated pseudo-gradients, and the inner."""
        outer = torch.optim.SGD(
            [{"params": list(replica.parameters.values()), "initial_lr": self.outer_lr}],
            lr=self.outer_lr,
            momentum=self.outer_momentum,
            nesterov=self.outer_nesterov,
            foreach=True,
        )
        return Optimizers(outer, CONSTANT, self.build_inner(replica, make_optimizer))

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        losses = self.backward(run, progress)
        self.step_inner(run, progress, run.replica.grads, self.clip_norm)
        return losses

    @torch.no_grad()
    def due_gradients(self, run: Run, progress: Progress) -> Grads:
        """Return pseudo-gradients, which take the place of gradients in the rows."""
        rows = run.replica.grads
        due = self._due(sizes_of(rows), progress.step + 1)
        for name in due:
            for row, inner in zip(rows[name], run.inner, strict=True):
                row.copy_(run.replica.parameters[name]).sub_(inner.parameters[name])
        return {name: rows[name] for name in due}

    def messages(self, run: Run) -> list[list[str]]:
        return cut_fragments(sizes_of(run.replica.grads), self.fragments)

    @torch.no_grad()
    def end_step(self, run: Run, progress: Progress) -> None:
        for name in self._due(sizes_of(run.replica.grads), progress.step):
            for inner in run.inner:
                inner.parameters[name].copy_(run.replica.parameters[name])

    def facts(
        self, run: Run, progress: Progress, sent_bits_per_step: float
    ) -> dict[str, Any] | None:
        """Return H, P and the mean bits of an exchange, of which there are P in H steps."""
        exchanges = progress.exchanges
        sent = sent_bits_per_step * progress.step
        return {
            "every": self.every,
            "fragments": self.fragments,
            "bits_per_exchange": sent / exchanges if exchanges else None,
        }

    def _due(self, sizes: Sizes, step: int) -> list[str]:
        """Return the names of the parameters that are exchanged at the end of step `step`."""
        fragment = self._fragment(step)
        return [] if fragment is None else cut_fragments(sizes, self.fragments)[fragment]

    def _fragment(self, step: int) -> int | None:
        """Return the fragment that is exchanged at the end of step `step`, counted from 1."""
        offsets = (k * self.every // self.fragments for k in range(self.fragments))
        return next(
            (k for k, offset in enumerate(offsets) if not (step - offset) % self.every), None
        )


def refuse_momentum(compressor: Compressor) -> None:
    """Raise ValueError for a compressor that codes the momentum of the workers' optimizer."""
    if any(isinstance(part, MomentumCoding) for part in parts_of(compressor)):
        raise ValueError(
            "compressor=onebit_adam codes the optimizer's momentum, which workers that step by "
            "themselves have made already; type compressor=scaled_sign error_feedback=true"
        )


def cut_fragments(sizes: Sizes, count: int) -> list[list[str]]:
    """Return the names in `count` parts of consecutive tensors, with about equally many values.

    No part is empty.
    """
    names, offsets, values = list(sizes), offsets_of(sizes), sum(sizes.values())
    starts = [0]
    for k in range(1, count):
        possible = range(starts[-1] + 1, len(names) - (count - k) + 1)
        starts.append(min(possible, key=lambda i: abs(count * offsets[names[i]] - k * values)))
    return [names[i:j] for i, j in zip(starts, [*starts[1:], len(names)], strict=True)]
