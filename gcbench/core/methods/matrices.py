"""How tensors are matrices, for methods that code matrices.

A tensor `[n, ...]` is an n x m matrix with m the product of its other dimensions: so is a linear
layer `[out, in]`, and a convolution `[out, in, height, width]`. A tensor of three dimensions is a
stack `[k, n, m]` of k matrices, such as the experts of a mixture that are stored as one parameter.
The weight `[out, in, width]` of a 1-D convolution is no stack: compressors get it as `[out, in,
width, 1]` (`core.parameters`), so that the shape alone says what a tensor is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Compressor,
    Grads,
    Properties,
    State,
    Step,
    merge,
    refuse_other_tensors,
    sizes_of,
)
from gcbench.core.fields import Checked, Natural, NonNegative
from gcbench.core.methods.dense import Dense


@runtime_checkable
class OfMatrices(Compressor, Protocol):
    """A method that codes each matrix by itself; `build` gives it those of a stack one by one."""

    def values_sent(self, shape: Sequence[int]) -> float:
        """Return how many floats a worker sends for a tensor that is no stack, as a mean."""


def is_stack(shape: Sequence[int]) -> bool:
    """Return whether a tensor of this shape is a stack of matrices `[k, n, m]`."""
    return len(shape) == 3


def is_convolution(shape: Sequence[int]) -> bool:
    """Return whether a tensor of this shape is the weight of a convolution, `[out, in, ...]`."""
    return len(shape) > 3


def sides_of(shape: Sequence[int]) -> tuple[int, int]:
    """Return (n, m) of a tensor that is no stack; a vector is a column."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def matrix_shape(g: Tensor) -> tuple[int, int]:
    """Return the shape (n, m) of a gradient `[w, ...]` as a matrix; a vector is a column."""
    return sides_of(g.shape[1:])


@dataclass(frozen=True)
class StacksOfMatrices:
    """Pass on the matrices of each stack `[k, n, m]` as tensors of their own.

    Updates and states are stacks again, so that a state belongs to a parameter. The matrices have
    the random draws that they would have as parameters one after the other.
    """

    inner: Compressor

    @property
    def properties(self) -> Properties:
        return self.inner.properties

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        counts = {k: g.shape[1] for k, g in grads.items() if g.dim() == 4}  # `[w, k, n, m]`
        if not counts:
            return self.inner.aggregate(grads, state, comm, step)
        offsets = dict(step.offsets)
        for name in counts:
            size = math.prod(grads[name].shape[2:])
            for i, matrix in enumerate(_names(name, counts)):
                offsets[matrix] = step.offsets[name] + i * size
        inner_state = State.of_layers(
            [(_split(s.shared, counts), _split(s.per_worker, counts)) for s in state.layers()]
        )
        matrices = _split(grads, counts)
        out = self.inner.aggregate(matrices, inner_state, comm, replace(step, offsets=offsets))

        def join(parts: Grads) -> Grads:
            refuse_other_tensors(parts, matrices)
            return _join(parts, grads, counts)

        state = State.of_layers(
            [
                (_join(s.shared, grads, counts), _join(s.per_worker, grads, counts))
                for s in out.state.layers()
            ]
        )
        return out.mapped(join)._replace(state=state)


def _names(name: str, counts: dict[str, int]) -> Iterator[str]:
    """Yield the names of a stack's matrices, which no parameter beside it can have."""
    return (f"{name}.{i}" for i in range(counts[name]))


def _split(tensors: Grads, counts: dict[str, int]) -> Grads:
    """Return tensors with each stack `[w, k, ...]` as k tensors `[w, ...]`."""
    parts: Grads = {}
    for name, x in tensors.items():
        parts |= (
            zip(_names(name, counts), x.unbind(1), strict=True) if name in counts else {name: x}
        )
    return parts


def _join(parts: Grads, grads: Grads, counts: dict[str, int]) -> Grads:
    """Return the tensors of `parts` with the names of `grads`, and stacks put together."""
    tensors: Grads = {}
    for name in grads:
        if name in parts:
            tensors[name] = parts[name]
        elif name in counts and f"{name}.0" in parts:
            tensors[name] = torch.stack([parts[k] for k in _names(name, counts)], dim=1)
    return tensors


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
