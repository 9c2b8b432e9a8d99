"""Steps of methods between gloo processes, counted by the kernel's TCP and by the meter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from gloo_pool import Process
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.meter import Kind, Total
from gcbench.core.comm.transport import GlooTransport
from gcbench.core.compressor import State, Step, offsets_of, sizes_of
from gcbench.runner.check.tcp import tcp_bytes
from gcbench.runner.launch.instantiate import make_compressor

# Some of them are long enough for the usual `min_size`, and no message is longer than a chunk.
SHAPES = {"conv": (64, 32, 3, 3), "matrix": (128, 160), "bias": (160,)}
WARM_UP, STEPS = 1, 3  # the first step makes groups of processes, which connect


class Counted(NamedTuple):
    """The traffic of one process in all steps."""

    tcp_bits: int  # without what was sent again
    totals: Mapping[Kind, Total]
    reduced: list[int]  # the numbers of values in its all-reduces


def steps_of_methods(process: Process, nodes: Sequence[Any], workers: int) -> list[Counted]:
    """Return what this process sent with each `compressor` node of a configuration."""
    return [_steps_of_method(process, node, workers) for node in nodes]


def _steps_of_method(process: Process, node: Any, workers: int) -> Counted:
    compressor, state = make_compressor(node, quiet=True), State()
    reduced: list[int] = []

    def note(collective: str, tensors: Sequence[Tensor], lengths: Any) -> None:
        if collective.startswith("all_reduce"):
            reduced.append(sum(t.numel() for t in tensors))

    comm = Comm(workers, GlooTransport(process.world), listener=note)
    offsets = offsets_of(sizes_of(_gradients(0, 0)))
    before: dict[str, int] = {}
    for number in range(WARM_UP + STEPS):
        if number == WARM_UP:
            comm.meter.load([[] for _ in comm.local])
            reduced.clear()
            before = tcp_bytes()
        grads = _gradients(number, process.rank)
        step = Step(number, 1, comm.local, offsets)
        state = compressor.aggregate(grads, state, comm, step).state
    sent = sum(n - before.get(inode, 0) for inode, n in tcp_bytes().items())
    process.control.barrier()  # or a process that is done closes what another still counts
    return Counted(8 * sent, dict(comm.meter.totals_by_worker[0]), reduced)


def _gradients(number: int, rank: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(10 * number + rank)
    return {name: torch.randn(1, *shape, generator=generator) for name, shape in SHAPES.items()}
