"""Steps of a method outside of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field

from gcbench.comm.collectives import Comm
from gcbench.compressors.base import (
    Aggregated,
    Compressor,
    Grads,
    State,
    Step,
    offsets_of,
    sizes_of,
)
from gcbench.compressors.build import dense_steps_of


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
    """Return the aggregate of one step; without `comm`, each row is a virtual worker.

    If it is done `in_place`, the state's tensors may be overwritten.
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
