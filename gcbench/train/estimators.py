"""The gradient of each worker's batch: the estimator of plain SGD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gcbench.compressors import Compressor, Grads
from gcbench.data import Data
from gcbench.train.replica import Replica
from gcbench.train.run import MakeOptimizer, Optimizers, Progress, Run


class EveryStep:
    """Mixin of estimators that exchange all gradients in every step."""

    period: ClassVar[int] = 1
    worker_copies: ClassVar[int] = 0

    def build_optimizers(self, replica: Replica, make_optimizer: MakeOptimizer) -> Optimizers:
        return Optimizers(*make_optimizer(replica.model))

    def due_gradients(self, run: Run, progress: Progress) -> Grads:
        return run.replica.grads

    def messages(self, run: Run) -> list[list[str]]:
        return [list(run.replica.grads)]

    def whole_gradients(self, run: Run, progress: Progress) -> int:
        return 0


@dataclass(frozen=True)
class SGD(EveryStep):
    """The mean gradient of the batch, as it is."""

    def refuse(
        self, model: nn.Module, data: Data, compressor: Compressor, config: Mapping[str, Any]
    ) -> None:
        pass

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        run.replica.begin()
        rows = range(len(run.replica.workers))
        key = (run.seed, progress.step)
        return torch.stack(
            [
                run.replica.backward(row, batch_of(run, progress.step, row), key, run.clock)
                for row in rows
            ]
        )

    def end_step(self, run: Run, progress: Progress) -> None:
        pass

    def facts(
        self, run: Run, progress: Progress, sent_bits_per_step: float
    ) -> dict[str, Any] | None:
        return None


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
