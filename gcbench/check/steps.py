"""Steps of a method on small gradients, which are the same for virtual and real workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.comm.collectives import Comm, Lengths
from gcbench.compressors import Compressor, Grads, State, flatten
from gcbench.compressors.virtual import aggregate

WORKERS = 4
STEPS = 3

SHAPES: dict[str, tuple[int, ...]] = {
    "conv": (6, 3, 3, 3),
    "conv bias": (6,),
    "matrix": (10, 13),
    "scalar": (),
    "twin": (10, 13),
    "one": (1,),
    "row": (1, 37),
}


def gradients(
    workers: Sequence[int], number: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> Grads:
    """Return the workers' gradients of one step, `{name: [w, *shape]}`.

    Each worker's are drawn from its own generator, plus a part that all workers share.
    """
    grads: Grads = {}
    for i, (name, shape) in enumerate(shapes.items()):
        common = torch.randn(shape, generator=torch.Generator().manual_seed(10_000 + i))
        seeds = [1000 * worker + 100 * number + i for worker in workers]
        of_workers = [
            torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds
        ]
        grads[name] = torch.stack([common + x for x in of_workers]) * 0.1
    return grads


def shapes_of(grads: Grads) -> dict[str, tuple[int, ...]]:
    return {k: tuple(g.shape[1:]) for k, g in grads.items()}


def flat(grads: Grads) -> Tensor:
    """Return all tensors concatenated, `[w, n]` in float64."""
    return flatten(grads).double()


class Trace(NamedTuple):
    """The updates, states and bits of some steps in one process."""

    updates: list[Grads]
    residuals: list[list[Grads]]  # by step and layer of the state, of each worker
    sent_bits: list[int]
    received_bits: list[int]


def trace(compressor: Compressor, comm: Comm, steps: int = STEPS) -> Trace:
    """Take some steps on `gradients`, and return their trace in this process."""
    state = State()
    updates, residuals = [], []
    for number in range(steps):
        out = aggregate(
            compressor, gradients(comm.local, number), number=number, state=state, comm=comm
        )
        state = out.state
        updates.append(out.update)
        out.sent()  # error feedback would ask for it; it may change nothing
        residuals.append([layer.per_worker for layer in state.layers()])
    return Trace(updates, residuals, comm.meter.sent_bits, comm.meter.received_bits)


Seen = dict[tuple[str, torch.dtype], int]
"""The bits of one worker by the collective and the type in which they travel."""


def observe() -> tuple[Comm, Seen]:
    """Return a Comm of virtual workers, and a record of what will be sent between them."""
    seen: Seen = {}

    def note(collective: str, tensors: Sequence[Tensor], lengths: Lengths) -> None:
        for t, n in zip(tensors, lengths, strict=True):
            values = t[0].numel() if n is None else int(n[0])
            key = collective.removesuffix(" sum"), t.dtype
            seen[key] = seen.get(key, 0) + 8 * t.element_size() * values

    return Comm(WORKERS, listener=note), seen
