"""How far updates are from the mean of all workers' gradients, measured now and then."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Grads
from gcbench.core.errors import ConfigError


class Errors:
    """The relative error of an update in every `every`-th exchange; None never measures it.

    Measuring costs an all-reduce in fp32, which no meter counts.
    """

    def __init__(self, every: int | None, comm: Comm) -> None:
        self._every, self._comm = every, comm
        self._step = -1
        self._squares: Tensor | None = None  # of |y - x| and |x|, on the device

    def mean(self, step: int, rows: Grads) -> Tensor | None:
        """Return the mean gradient, flat, if the exchange `step` is measured."""
        if not self._every or step % self._every:
            return None
        if step != self._step:  # a backward pass may have several exchanges
            self._step, self._squares = step, None
        flat = torch.cat([x.flatten() for x in rows.values()])
        if self._comm.transport is not None:
            self._comm.transport.all_reduce(flat, "sum")
        return flat / self._comm.workers

    def compare(self, mean: Tensor, update: Grads) -> None:
        """Measure an update; one that is shorter than the mean is this worker's shard of it."""
        y = torch.cat([x.flatten() for x in update.values()])
        x = (
            mean
            if len(y) == len(mean)
            else mean.view(self._comm.workers, -1)[self._comm.local.start]
        )
        squares = torch.stack([(y - x).square().sum(), x.square().sum()])
        self._squares = squares if self._squares is None else self._squares + squares

    def last(self) -> float:
        """Return the error that was measured last; NaN before."""
        if self._every is None:
            raise ConfigError("error(): nothing is measured; type error_every=50 where it is made")
        if self._squares is None:
            return math.nan
        difference, norm = self._squares.sqrt().tolist()
        return difference / norm if norm else math.nan
