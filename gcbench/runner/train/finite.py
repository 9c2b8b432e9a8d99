"""The first value of a run that was not finite, noted on the device so that no step waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.core.compressor import Aggregated
from gcbench.core.library.agreement import not_finite

# In order of cause: within one step, an earlier kind causes the later ones.
KINDS = ("loss", "gradient", "residual", "update")


class BadValue(NamedTuple):
    """A worker's first value that was not finite; of several, the smallest tuple came first."""

    step: int
    kind: int  # an index into KINDS
    worker: int


@dataclass
class FirstBad:
    """The first step at which each of KINDS was not finite, for each worker of this process.

    It is -1 where there was none.
    """

    steps: Tensor  # [w, kinds]

    @staticmethod
    def none(workers: int, device: torch.device) -> FirstBad:
        return FirstBad(torch.full((workers, len(KINDS)), -1, device=device))

    def note_gradients(self, step: int, losses: Tensor, gradients: Tensor) -> None:
        """Note which losses `[w]` and gradients `[w, n]` of a step are not finite."""
        self._note(step, "loss", ~losses.isfinite())
        self._note(step, "gradient", not_finite([gradients]))

    def note_exchange(self, step: int, out: Aggregated) -> None:
        """Note non-finite residuals (`[w, ...]`) and updates (`[1, ...]`) of an exchange."""
        kept = [x for layer in out.state.layers() for x in layer.per_worker.values()]
        if residuals := [x for x in kept if x.is_floating_point()]:
            self._note(step, "residual", not_finite(residuals))
        self._note(step, "update", not_finite(out.update.values()))

    def _note(self, step: int, kind: str, bad: Tensor) -> None:
        """Note the step for the workers where `bad`, `[w]` or `[1]` for all of them, is true."""
        column = self.steps[:, KINDS.index(kind)]
        column.copy_(torch.where(bad & (column < 0), step, column))

    def collect(self, workers: range) -> list[BadValue]:
        """Return what was noted for `workers`; this waits for the device."""
        return [
            BadValue(step, kind, worker)
            for worker, row in zip(workers, self.steps.tolist(), strict=True)
            for kind, step in enumerate(row)
            if step >= 0
        ]


def describe_bad_value(bad: BadValue) -> str:
    """Return the sentence that says why the run ended."""
    step, kind, worker = bad
    if KINDS[kind] == "update":
        return (
            f"the update was not finite at step {step}, though every worker's gradient was: their "
            "sum, or a code, overflowed"
        )
    if KINDS[kind] == "residual":
        return (
            f"what worker {worker} remembers (error feedback, momentum) was not finite after step "
            f"{step}"
        )
    return f"the {KINDS[kind]} of worker {worker} was not finite at step {step}"
