"""Learning-rate schedules: a pure function of the step, or a scheduler of torch."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gcbench.runner.data import Data
from gcbench.runner.settings.groups import ScheduleSettings, TrainerSettings


def total_steps(max_steps: int | None, epochs: float, steps_per_epoch: int) -> int:
    """Return the number of steps of a run, which may end inside an epoch."""
    return max_steps or max(1, round(epochs * steps_per_epoch))


def steps_of_run(trainer: TrainerSettings, data: Data) -> int:
    """Return the number of steps of a run, from its trainer settings and its data."""
    steps_per_epoch = data.steps_per_epoch(trainer.workers, trainer.batch_size)
    return total_steps(trainer.max_steps, trainer.epochs, steps_per_epoch)


class Schedule(Protocol):
    """A setter of the learning rates of an optimizer's parameter groups."""

    def set_rates(self, optimizer: Optimizer, step: int) -> None:
        """Set the rates for a step; called once before each, from the first step on."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that `set_rates` needs besides the step, for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class FactorSchedule:
    """A factor on every group's learning rate that depends on the step alone.

    The warm-up rises linearly over `warmup_epochs`; at step 0 it is exactly `warmup_start`, a
    fraction of the rate that it reaches. By default it starts at the rate of a single worker if
    `scale_by_workers` multiplies that by W (Goyal et al. 2017), else one step above zero.
    `milestones` are fractions of the whole run.
    """

    settings: ScheduleSettings
    workers: int
    steps_per_epoch: int
    total_steps: int

    def set_rates(self, optimizer: Optimizer, step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self.factor(step)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def factor(self, step: int) -> float:
        if self.settings.interval == "epoch":
            step -= step % self.steps_per_epoch
        return self._warmup_factor(step) * self._decay_factor(step)

    def _warmup_factor(self, step: int) -> float:
        top = float(self.workers) if self.settings.scale_by_workers else 1.0
        steps = self.settings.warmup_epochs * self.steps_per_epoch
        if step >= steps:
            return top
        start = self._warmup_start(top, steps)
        return start + (top - start) * step / steps

    def _warmup_start(self, top: float, steps: float) -> float:
        if self.settings.warmup_start is not None:
            return self.settings.warmup_start * top
        return 1.0 if self.settings.scale_by_workers else top / (steps + 1)

    def _decay_factor(self, step: int) -> float:
        done = step / self.total_steps
        if self.settings.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        if self.settings.kind == "linear":
            warmup = self.settings.warmup_epochs * self.steps_per_epoch
            fallen = (step - warmup) / max(1.0, self.total_steps - warmup)
            return 1 - max(0.0, fallen) * (1 - self.settings.end_factor)
        if self.settings.kind == "steps":
            return float(
                self.settings.gamma ** sum(done >= m for m in self.settings.milestones or [])
            )
        return 1.0


CONSTANT = FactorSchedule(ScheduleSettings(), 1, 1, 1)
"""Leaves the rates as they are, as those of an outer optimizer."""


@dataclass(frozen=True)
class TorchSchedule:
    """A scheduler of torch.optim.lr_scheduler, stepped after every `every` steps."""

    scheduler: LRScheduler
    every: int

    def set_rates(self, optimizer: Optimizer, step: int) -> None:
        if step and step % self.every == 0:
            with warnings.catch_warnings():
                # With trainer.double_buffering the first update comes a step late, of which torch
                # says that it skips a rate.
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state)
