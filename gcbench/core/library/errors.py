"""How far updates are from the mean of what was coded, measured now and then."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor, Goal
from gcbench.core.deviation import Deviation
from gcbench.core.errors import ConfigError


class Errors:
    """The deviation of an update in every `every`-th exchange; None never measures it.

    Measuring costs an all-reduce in float64, which no meter counts.
    """

    def __init__(self, every: int | None, comm: Comm) -> None:
        self._every, self._comm = every, comm
        self._step = -1
        self._last: Deviation | None = None

    def measure(self, step: int, goal: Callable[[], Goal]) -> None:
        """Measure an update of the exchange `step`, if that is measured."""
        if not self._every or step % self._every:
            return
        measured = Deviation.of(goal(), self._comm, self._total)
        # A backward pass may have several exchanges.
        self._last = measured.plus(self._last if step == self._step else None)
        self._step = step

    def _total(self, x: Tensor) -> Tensor:
        if self._comm.transport is not None:
            self._comm.transport.all_reduce(x, "sum")
        return x

    def last(self, what: str, compressor: Compressor) -> float:
        """Return the `relative` error or `cosine` that was measured last; NaN where there is none.

        Raises ConfigError if nothing is ever measured.
        """
        if self._every is None:
            raise ConfigError("error(): nothing is measured; type error_every=50 where it is made")
        return self._last.measured(compressor).get(what, math.nan) if self._last else math.nan
