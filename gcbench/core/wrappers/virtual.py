"""Steps of a method outside of a training run, and what its parts say of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Compressor, Grads, State, Step, offsets_of, sizes_of
from gcbench.core.methods.by_kind import ByKind
from gcbench.core.methods.dense import Dense
from gcbench.core.methods.matrices import SmallTensorsWhole, is_convolution
from gcbench.core.wrappers.wrappers import DenseWarmup


def aggregate(
    compressor: Compressor,
    grads: Grads,
    *,
    number: int = 0,
    seed: int = 1,
    state: State | None = None,
    comm: Comm | None = None,
    in_place: bool = False,
) -> Aggregated:
    """Return the aggregate of all gradients; without `comm`, each row is a virtual worker.

    With `in_place`, the state's tensors may be overwritten.
    """
    comm = comm or Comm(len(next(iter(grads.values()))))
    step = Step(number, seed, comm.local, offsets_of(sizes_of(grads)), in_place)
    return compressor.aggregate(grads, state or State(), comm, step)


@dataclass
class Stepper:
    """A method that repeats steps on the same gradients, each with the state of the last one.

    The first step is the first after a warm-up, whose gradients are sent uncompressed.
    """

    compressor: Compressor
    grads: Grads
    comm: Comm
    steps: int = field(init=False)
    state: State = field(default_factory=State)

    def __post_init__(self) -> None:
        self.steps = dense_steps_of(self.compressor)

    def step(self) -> None:
        self.state = aggregate(
            self.compressor,
            self.grads,
            number=self.steps,
            state=self.state,
            comm=self.comm,
            in_place=True,
        ).state
        self.steps += 1


def parts_of(compressor: Compressor) -> Iterator[object]:
    """Yield the compressor and what it wraps, outermost first."""
    part: object | None = compressor
    while part is not None:
        yield part
        part = getattr(part, "inner", None) or getattr(part, "codec", None)


def analytic_ratio(compressor: Compressor) -> float | None:
    """Return 32 divided by the bits per value that the method's paper counts.

    Scales and tables are left out. None if the bits depend on the codes, or if the paper counts
    them in another way.
    """
    name = "analytic_bits_per_value"
    bits = next((getattr(part, name) for part in parts_of(compressor) if hasattr(part, name)), None)
    return 32 / bits if bits else None


def state_bytes(state: State) -> int:
    """Return the bytes that one worker keeps from step to step."""
    parts = [part for layer in state.layers() for part in (layer.shared, layer.per_worker)]
    return sum(x[:1].nbytes for part in parts for x in part.values())


def is_direction(compressor: Compressor) -> bool:
    """Return whether a part of the update has no scale, so that its length says nothing."""
    parts = (getattr(part, "properties", None) for part in parts_of(compressor))
    return any(properties.direction for properties in parts if properties)


def compressed_share(
    compressor: Compressor, shapes: Collection[Sequence[int]], exchanges: int, whole: int = 0
) -> float:
    """Return the share of gradient values that are compressed, averaged over `exchanges`.

    The other values are sent in fp32, as are `whole` gradients in addition to these exchanges,
    which count in the average.
    """
    share = _count_compressed(compressor, shapes) / max(1, sum(map(math.prod, shapes)))
    if not exchanges + whole:
        return share
    coded = max(0, exchanges - dense_steps_of(compressor))
    return share * coded / (exchanges + whole)


def dense_steps_of(compressor: Compressor) -> int:
    """Return how many exchanges of a warm-up send uncompressed gradients."""
    return sum(part.dense_steps for part in parts_of(compressor) if isinstance(part, DenseWarmup))


def _count_compressed(part: Any, shapes: Collection[Sequence[int]]) -> int:
    """Return how many values of tensors of these shapes are compressed."""
    if isinstance(part, ByKind):
        convolutions = [shape for shape in shapes if is_convolution(shape)]
        others = [shape for shape in shapes if not is_convolution(shape)]
        return _count_compressed(part.convolutions, convolutions) + _count_compressed(
            part.others, others
        )
    if isinstance(part, Dense) and part.dtype == "float32":
        return 0
    if isinstance(part, SmallTensorsWhole):
        shapes = [shape for shape in shapes if not part.sets_aside(shape)]
    inner = getattr(part, "inner", None)
    return _count_compressed(inner, shapes) if inner is not None else sum(map(math.prod, shapes))
