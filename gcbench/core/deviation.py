"""How far an update is from the mean of what workers were to code."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor, Goal, flatten
from gcbench.core.wrappers.virtual import is_direction


class Deviation(NamedTuple):
    """Sums from which the error and the cosine of an update follow; those of its parts add up.

    They are float64 and stay on the device. The mean is that over workers of their gradients,
    unless a wrapper or a method changes what is coded (`core.compressor.Goal`).
    """

    sums: Tensor  # |update - mean|^2, |mean|^2, |update|^2, update * mean

    @staticmethod
    @torch.no_grad()
    def of(goal: Goal, comm: Comm, total: Callable[[Tensor], Tensor]) -> Deviation:
        """Return how far what all workers got is from the mean of what they wanted.

        `total` adds up what processes have; nothing that it sends is counted. What is shorter than
        the mean is this worker's shard of it.
        """
        mean = total(flatten(goal.wanted).sum(0, dtype=torch.float64)) / comm.workers
        got = flatten({name: goal.got[name] for name in goal.wanted})[0].double()
        if len(got) < len(mean):
            mean = mean.view(comm.workers, -1)[comm.local.start]
        pairs = ((got - mean, got - mean), (mean, mean), (got, got), (got, mean))
        return Deviation(torch.stack([a @ b for a, b in pairs]))

    def plus(self, other: Deviation | None) -> Deviation:
        return self if other is None else Deviation(self.sums + other.sums)

    def measured(self, compressor: Compressor) -> dict[str, float]:
        """Return the `relative` error and the `cosine`; this waits for the device.

        Both are left out where the mean is exactly 0, the cosine where the update is, and the error
        where the method's update has no scale.
        """
        difference, mean, update, _ = self.sums.sqrt().tolist()
        product = float(self.sums[3])
        found = {}
        if mean and not is_direction(compressor):
            found["relative"] = difference / mean
        if mean and update:
            found["cosine"] = product / (update * mean)
        # Rounding to float32 hides the order in which the workers were summed.
        return {name: float(torch.tensor(x, dtype=torch.float32)) for name, x in found.items()}
