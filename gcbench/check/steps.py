"""Steps of a method on small gradients, alike for virtual workers and for real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.comm import Comm
from gcbench.comm.collectives import Lengths
from gcbench.compressors import Aggregated, Compressor, Grads, State, Step

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
    """`{name: [w, *shape]}` for one step, each worker's from its own generator, with a part that all share."""
    found: Grads = {}
    for i, (name, shape) in enumerate(shapes.items()):
        common = torch.randn(shape, generator=torch.Generator().manual_seed(10_000 + i))
        own = [
            torch.randn(
                shape, generator=torch.Generator().manual_seed(1000 * worker + 100 * number + i)
            )
            for worker in workers
        ]
        found[name] = torch.stack([common + x for x in own]) * 0.1
    return found


def offsets(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = start
        start += torch.Size(shape).numel()
    return found


def shapes_of(grads: Grads) -> dict[str, tuple[int, ...]]:
    return {k: tuple(g.shape[1:]) for k, g in grads.items()}


def aggregate(
    compressor: Compressor,
    grads: Grads,
    *,
    number: int = 0,
    seed: int = 1,
    state: State | None = None,
    comm: Comm | None = None,
) -> Aggregated:
    """One step; without `comm`, of as many virtual workers as there are rows."""
    comm = comm or Comm(len(next(iter(grads.values()))))
    step = Step(number, seed, comm.local, offsets(shapes_of(grads)))
    return compressor.aggregate(grads, state or State(), comm, step)


def flat(grads: Grads) -> Tensor:
    """`[w, n]` in float64."""
    return torch.cat([g.reshape(g.shape[0], -1) for g in grads.values()], dim=1).double()


class Trace(NamedTuple):
    """What a process saw of some steps."""

    updates: list[Grads]
    sent: list[Grads]
    memories: list[list[Grads]]  # by step and layer of the state, each worker's own
    sent_bits: list[int]
    received_bits: list[int]


def trace(compressor: Compressor, comm: Comm, steps: int = STEPS) -> Trace:
    state = State()
    updates, sent, memories = [], [], []
    for number in range(steps):
        out = aggregate(
            compressor, gradients(comm.local, number), number=number, state=state, comm=comm
        )
        state = out.state
        updates.append(out.update)
        sent.append(out.sent())
        memories.append([layer.per_worker for layer in state.layers()])
    return Trace(updates, sent, memories, comm.meter.sent_bits, comm.meter.received_bits)


Seen = dict[tuple[str, torch.dtype], int]
"""Collective and type to the bits of one worker that travel so."""


def observe(workers: int) -> tuple[Comm, Seen]:
    """Return virtual workers, and a record of what will travel between them."""
    seen: Seen = {}

    def note(collective: str, tensors: Sequence[Tensor], lengths: Lengths) -> None:
        for t, n in zip(tensors, lengths, strict=True):
            values = t[0].numel() if n is None else int(n[0])
            key = collective.removesuffix(" sum"), t.dtype
            seen[key] = seen.get(key, 0) + 8 * t.element_size() * values

    return Comm(workers, listener=note), seen
