"""The gradient of each worker's batch: the estimator of plain SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.runner.train.replica import Replica
from gcbench.runner.train.run import Estimator, MakeOptimizer, Optimizers, Progress, Run


class EveryStep(Estimator):
    """Base of estimators that exchange all gradients in every step."""

    period: ClassVar[int] = 1
    worker_copies: ClassVar[int] = 0

    def build_optimizers(self, replica: Replica, make_optimizer: MakeOptimizer) -> Optimizers:
        return Optimizers(*make_optimizer(replica.model))


@dataclass(frozen=True)
class SGD(EveryStep):
    """Plain SGD: the mean gradient over each worker's batch."""

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        replica, key = run.replica, (run.seed, progress.step)
        replica.begin()
        losses = [torch.zeros((), dtype=torch.float32, device=replica.device)] * len(
            replica.workers
        )
        for row in range(len(replica.workers)):
            losses[row] = replica.backward(row, batch_of(run, progress.step, row), key, run.clock)
        return torch.stack(losses)


def batch_of(run: Run, number: int, row: int) -> tuple[Tensor, Tensor]:
    """Return the batch on which the worker of this row trains in step `number`."""
    epoch, step = divmod(number, run.steps_per_epoch)
    run.clock.lap("data")
    return run.data.batch(
        epoch=epoch,
        step=step,
        worker=run.replica.workers[row],
        workers=run.comm.workers,
        batch_size=run.settings.batch_size,
        seed=run.seed,
    )
