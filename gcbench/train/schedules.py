"""The learning rate as a pure function of how far the run has come."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gcbench.settings import ScheduleKind, ScheduleSettings


def total_steps(max_steps: int | None, epochs: float, steps_per_epoch: int) -> int:
    """Return the steps of a run, which may end inside an epoch."""
    return max_steps or max(1, round(epochs * steps_per_epoch))


@dataclass(frozen=True)
class Schedule:
    """A factor on the optimizer's learning rate.

    The warm-up rises linearly over `warmup_epochs` from `warmup_start`, a fraction of the rate that
    it reaches: at step 0 it is exactly that. By default it starts at the rate of a single worker
    where `scale_by_workers` multiplies that by W (Goyal et al. 2017), else one step above zero.
    `milestones` are fractions of the whole run.
    """

    settings: ScheduleSettings
    workers: int
    steps_per_epoch: int
    total_steps: int

    def factor(self, step: int) -> float:
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
        if self.settings.kind is ScheduleKind.cosine:
            return 0.5 * (1 + math.cos(math.pi * done))
        if self.settings.kind is ScheduleKind.linear:
            warmup = self.settings.warmup_epochs * self.steps_per_epoch
            fallen = (step - warmup) / max(1.0, self.total_steps - warmup)
            return 1 - max(0.0, fallen) * (1 - self.settings.end_factor)
        if self.settings.kind is ScheduleKind.steps:
            return float(
                self.settings.gamma ** sum(done >= m for m in self.settings.milestones or [])
            )
        return 1.0
