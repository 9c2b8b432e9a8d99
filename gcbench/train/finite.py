"""The first loss or gradient that was not finite: noted on the device, so that no step waits for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

KINDS = ("loss", "gradient")  # a loss that is not finite has such a gradient: of one step, the loss is the cause

Bad = tuple[int, int, int]
"""Step, kind, worker: the least one came first."""


@dataclass
class FirstBad:
    """Of each worker here and each of KINDS, the first step at which it was not finite, or -1."""

    steps: Tensor  # [w, kinds]

    @staticmethod
    def none(workers: int, device: torch.device) -> FirstBad:
        return FirstBad(torch.full((workers, len(KINDS)), -1, device=device))

    def note(self, step: int, losses: Tensor, gradients: Tensor) -> None:
        """Losses `[w]` and gradients `[w, n]`, of which a sum shows in one pass whether all are finite: one of 64 bits, in
        which finite values of 32 do not overflow."""
        bad = ~torch.stack([losses.double(), gradients.sum(1, dtype=torch.float64)], dim=1).isfinite()
        self.steps = torch.where(bad & (self.steps < 0), step, self.steps)

    def found(self, workers: range) -> list[Bad]:
        """Waits for the device."""
        return [
            (step, kind, worker)
            for worker, row in zip(workers, self.steps.tolist(), strict=True)
            for kind, step in enumerate(row)
            if step >= 0
        ]


def reason(bad: Bad) -> str:
    step, kind, worker = bad
    return f"the {KINDS[kind]} of worker {worker} was not finite at step {step}"
