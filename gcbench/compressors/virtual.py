"""One step of a method without a run around it."""

from __future__ import annotations

from gcbench.comm import Comm
from gcbench.compressors.base import (
    Aggregated,
    Compressor,
    Grads,
    State,
    Step,
    offsets_of,
    sizes_of,
)


def aggregate(
    compressor: Compressor,
    grads: Grads,
    *,
    number: int = 0,
    seed: int = 1,
    state: State | None = None,
    comm: Comm | None = None,
) -> Aggregated:
    """Return the aggregate of one step; without `comm`, of a virtual worker for every row."""
    comm = comm or Comm(len(next(iter(grads.values()))))
    step = Step(number, seed, comm.local, offsets_of(sizes_of(grads)))
    return compressor.aggregate(grads, state or State(), comm, step)
