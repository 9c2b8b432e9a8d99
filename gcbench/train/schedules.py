"""The learning rate as a pure function of how far the run has come."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gcbench.settings import ScheduleKind, ScheduleSettings


def total_steps(max_steps: int | None, epochs: float, steps_per_epoch: int) -> int:
    """Of a run, which may end inside an epoch."""
    return max_steps or max(1, round(epochs * steps_per_epoch))


@dataclass(frozen=True)
class Schedule:
    """Factor on the optimiser's learning rate.

    With `scale_by_workers` the rate is that of a single worker times W, reached linearly from x 1 over `warmup_epochs`
    (Goyal et al. 2017); without, the warm-up starts from zero. `milestones` are fractions of the whole run.
    """

    settings: ScheduleSettings
    workers: int
    steps_per_epoch: int
    total_steps: int

    def factor(self, step: int) -> float:
        return self._warmed_up(step) * self._decayed(step)

    def _warmed_up(self, step: int) -> float:
        top = float(self.workers) if self.settings.scale_by_workers else 1.0
        start = 1.0 if self.settings.scale_by_workers else 0.0
        steps = self.settings.warmup_epochs * self.steps_per_epoch
        if step >= steps:
            return top
        done = (step + 1) / (steps + 1)  # the first step already moves, the first step after the warm-up is at the top
        return start + (top - start) * done

    def _decayed(self, step: int) -> float:
        done = step / self.total_steps
        if self.settings.kind is ScheduleKind.cosine:
            return 0.5 * (1 + math.cos(math.pi * done))
        if self.settings.kind is ScheduleKind.steps:
            return float(self.settings.gamma ** sum(done >= m for m in self.settings.milestones or []))
        return 1.0
