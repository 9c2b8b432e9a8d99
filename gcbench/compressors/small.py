"""Small tensors, and matrices that are smaller than their factors, sent uncompressed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gcbench.comm.collectives import Comm
from gcbench.compressors.base import (
    Aggregated,
    Compressor,
    Grads,
    Properties,
    State,
    Step,
    merge,
    sizes_of,
)
from gcbench.compressors.dense import Dense
from gcbench.compressors.matrices import OfMatrices, is_stack
from gcbench.settings.fields import Checked, Natural, NonNegative


@dataclass(frozen=True)
class SmallTensorsWhole(Checked):
    """Send small tensors uncompressed, in fp32 by an all-reduce.

    A tensor is small if it has fewer than `min_size` values or fewer than `min_dims` dimensions, or
    if `method` would send more than 1 / `min_ratio` of its values.

    A method whose updates are directions still makes those of matrices that are too small for
    `min_ratio`: from the mean of their gradients, the same on all workers.
    """

    inner: Compressor
    min_size: Natural = 0
    min_dims: Natural = 0
    min_ratio: NonNegative = 0.0
    # The method inside, which `min_ratio` asks; its repr has the method anyway.
    method: OfMatrices | None = field(default=None, repr=False)
    dense: Compressor = Dense()

    def sets_aside(self, shape: Sequence[int]) -> bool:
        return self._has_few_values(shape) or self._saves_too_little(shape)

    def _has_few_values(self, shape: Sequence[int]) -> bool:
        return math.prod(shape) < self.min_size or len(shape) < self.min_dims

    def _saves_too_little(self, shape: Sequence[int]) -> bool:
        if self.method is None or not self.min_ratio:
            return False
        matrix = shape[1:] if is_stack(shape) else shape
        return math.prod(matrix) < self.min_ratio * self.method.values_sent(matrix)

    @property
    def properties(self) -> Properties:
        inner = self.inner.properties
        return inner._replace(divisible=inner.divisible and self.min_dims == 0)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        whole = {k: g for k, g in grads.items() if self.sets_aside(g.shape[1:])}
        rest = {k: g for k, g in grads.items() if k not in whole}
        if not whole:
            return self.inner.aggregate(rest, state, comm, step)
        some = next(iter(whole.values()))
        bits = some.new_full(
            (len(some),), 32.0 * sum(sizes_of(whole).values()), dtype=torch.float64
        )
        dense = self.dense.aggregate(whole, State(), comm, step)
        # They have a bound even if they are alone, as in a bucket of DDP beside others with codes.
        dense = dense._replace(shannon_bits=lambda: bits)
        if self.inner.properties.direction:
            dense = self._with_directions(dense, state, step)
        if not rest:
            return dense._replace(state=state.replace(dense.state))
        return merge([dense, self.inner.aggregate(rest, state, comm, step)], grads)

    def _with_directions(self, dense: Aggregated, state: State, step: Step) -> Aggregated:
        """Return whole gradients with the method's updates of those that are large enough."""
        means = {k: x for k, x in dense.update.items() if not self._has_few_values(x.shape[1:])}
        if not means:
            return dense
        # A single worker with the mean gradient has what all workers would keep.
        own = _with_rows(state.select(means), lambda x: x[:1])
        alone = self.inner.aggregate(means, own, Comm(1), replace(step, workers=range(1)))
        rows = len(step.workers)
        kept = _with_rows(alone.state, lambda x: x.expand(rows, *x.shape[1:]))
        return dense._replace(update=dense.update | alone.update, state=kept)


def _with_rows(state: State, rows_of: Callable[[Tensor], Tensor]) -> State:
    """Return a state whose tensors of each worker are what `rows_of` makes of them."""
    return State.of_layers(
        [(x.shared, {k: rows_of(t) for k, t in x.per_worker.items()}) for x in state.layers()]
    )
