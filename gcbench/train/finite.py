"""The first value of a run that was not finite, noted on the device so that no step waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.compressors import Aggregated

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


def not_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Return for each worker, `[w]`, whether its row of any tensor `[w, ...]` is not finite."""
    wholes = _wholes([x for x in tensors if x.numel()])
    by_worker = list(zip(*wholes, strict=True))
    rows = [row for worker in by_worker for row in worker]
    if rows[0].device.type == "cpu":
        # A sum is faster than extremes, and finite only where all its terms are.
        if torch.stack([row.sum() for row in rows]).isfinite().all():
            return torch.zeros(len(by_worker), dtype=torch.bool)
        # A sum of finite values may overflow; extremes are exact, and fastest by row.
        extremes = [torch.stack(row.aminmax()).abs().amax() for row in rows]
    else:
        extremes = list(torch._foreach_norm(rows, torch.inf))  # reads all of them in one kernel
    each = torch.stack(extremes).view(len(by_worker), -1)
    return (each * 0).any(1)  # NaN, which counts as true, where a value is not finite


def _wholes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors `[w, ...]`, with one for all that are the parts of its rows."""
    by_whole: dict[int, list[Tensor]] = {}
    for x in tensors:
        by_whole.setdefault(id(x if x._base is None else x._base), []).append(x)
    wholes: list[Tensor] = []
    for parts in by_whole.values():
        whole = parts[0]._base
        if whole is None or len(whole) != len(parts[0]):
            wholes += parts
        else:
            fill = whole.numel() == sum(x.numel() for x in parts)
            wholes += [whole] if fill else parts
    return wholes


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
