"""Local steps: workers exchange differences of parameters every H steps instead of gradients."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gcbench.core.compressor import Compressor, Grads, sizes_of
from gcbench.core.library.exchange import ExchangeResult
from gcbench.core.local_rule import LocalRounds, LocalRule
from gcbench.runner.data import Data
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.estimators import batch_of
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.run import (
    Estimator,
    InnerModel,
    MakeOptimizer,
    Optimizers,
    Pipeline,
    Progress,
    Run,
)
from gcbench.runner.train.schedules import CONSTANT, steps_of_run


class InnerSteps(Estimator):
    """Base of estimators whose workers have their own parameters between exchanges."""

    worker_copies: ClassVar[int] = 3  # the parameters and Adam's two moments

    def build_inner(self, replica: Replica, make_optimizer: MakeOptimizer) -> list[InnerModel]:
        """Return a copy of the model, with the configured optimizer, for each worker here."""
        models = [deepcopy(replica.model) for _ in replica.workers]
        return [
            InnerModel(
                {name: p for name, p in model.named_parameters() if p.requires_grad},
                *make_optimizer(model),
            )
            for model in models
        ]

    def backward(self, run: Run, progress: Progress) -> Tensor:
        """Fill each worker's row with the gradient at its parameters; return mean losses `[w]`."""
        replica, key = run.replica, (run.seed, progress.step)
        replica.begin()
        losses = [torch.zeros((), dtype=torch.float32, device=replica.device)] * len(
            replica.workers
        )
        for row in range(len(run.inner)):
            batch = batch_of(run, progress.step, row)
            with replica.parameters_at([p.data for p in run.inner[row].parameters.values()]):
                losses[row] = replica.backward(row, batch, key, run.clock)
        run.clock.lap("update")
        return torch.stack(losses)

    def step_inner(
        self, run: Run, progress: Progress, grads: Grads, clip_norm: float | None = None
    ) -> None:
        """Step each worker's optimizer with its row of `grads`, or with the row that all share."""
        # Clipping and in-place optimizers would change the gradients that are to be recorded.
        recorded = progress.step in (run.settings.record_gradients or ())
        for row in range(len(run.inner)):
            inner = run.inner[row]
            for name, p in inner.parameters.items():
                own = grads[name][row if len(grads[name]) > 1 else 0]
                p.grad = own.to(p.dtype, copy=recorded)
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(inner.parameters.values(), clip_norm)
            inner.schedule.set_rates(inner.optimizer, progress.step)
            inner.optimizer.step()


@dataclass(frozen=True)
class LocalSteps(LocalRule, InnerSteps):
    """The estimator of a run with local steps: see `LocalRule`."""

    def refuse(
        self, model: nn.Module, data: Data, compressor: Compressor, config: RunConfig
    ) -> None:
        """Raise ValueError where parameters would not be exchanged, or where keys conflict."""
        trainer = config.trainer
        steps = steps_of_run(trainer, data)
        if steps < self.every + self.delay:
            raise ValueError(
                f"estimator.every={self.every}: the run has {steps} steps, in which not every "
                f"parameter would be exchanged; type estimator.every={max(1, steps - self.delay)} "
                "or fewer"
            )
        self.refuse_method(model, compressor)
        if self.fragments > 1 and trainer.record_gradients:
            raise ValueError(
                f"trainer.record_gradients={trainer.record_gradients}: with "
                f"estimator.fragments={self.fragments} no step exchanges all tensors; type "
                "trainer.record_gradients=null, or estimator.fragments=1"
            )

    def build_optimizers(self, replica: Replica, make_optimizer: MakeOptimizer) -> Optimizers:
        """Return the outer optimizer, which applies pseudo-gradients, and the inner ones."""
        outer = self.make_outer(replica.parameters)
        return Optimizers(outer, CONSTANT, self.build_inner(replica, make_optimizer))

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        losses = self.backward(run, progress)
        self.step_inner(run, progress, run.replica.grads, self.clip_norm)
        return losses

    def rounds(self, run: Run) -> LocalRounds:
        return LocalRounds(self, run.replica.parameters, [own.parameters for own in run.inner])

    def messages(self, run: Run) -> list[list[str]]:
        return self.cut(sizes_of(run.replica.grads))

    def end_step(self, run: Run, progress: Progress) -> None:
        self.rounds(run).adopt(progress.step)

    def facts(
        self, run: Run, progress: Progress, sent_bits_per_step: float
    ) -> dict[str, Any] | None:
        """Return H, P and the mean bits per exchange, of which there are P every H steps."""
        exchanges = progress.kept.exchanges
        sent = sent_bits_per_step * progress.step
        return {
            "every": self.every,
            "fragments": self.fragments,
            "bits_per_exchange": sent / exchanges if exchanges else None,
        }


class BetweenLocalSteps(Pipeline):
    """The pipeline of local steps, whose exchanges run during `estimator.delay` of them.

    At most one is under way. The one that is under way at the end comes too late.
    """

    def __init__(self, steps: LocalSteps) -> None:
        self._steps = steps

    def exchange(self, run: Run, progress: Progress) -> ExchangeResult | None:
        rows, delay = run.replica.grads, self._steps.delay

        def begin(grads: Grads) -> None:
            if delay:  # the rows are those of the next gradients, too
                grads = {name: x.clone() for name, x in grads.items()}
            self.begin(run, progress, grads, beside=delay > 0)

        def take() -> ExchangeResult | None:
            if delay:
                run.clock.lap("await")
            return self.take(run, progress)

        return self._steps.rounds(run).exchange(
            progress.step + 1, lambda names: {k: rows[k] for k in names}, begin, take
        )
