"""Checks that virtual workers and real processes have the same updates, states and bits."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import GlooTransport
from gcbench.core.compressor import Compressor, Grads
from gcbench.core.conf import Config
from gcbench.runner.check.contract import demand
from gcbench.runner.check.promises import rounding_of_sums
from gcbench.runner.check.steps import STEPS, WORKERS, Trace, flat, trace
from gcbench.runner.launch.instantiate import make_compressor
from gcbench.runner.launch.local import run_processes


def check_updates_agree(compressor: Compressor, virtual: Trace, processes: Sequence[Trace]) -> None:
    """Check that real processes apply the updates of virtual workers.

    They agree to the bit if no floats are summed, else up to the order of sums and the rounding of
    the type that is summed.
    """
    apart = [
        (number, real, expected)
        for process in processes
        for number, (real, expected) in enumerate(
            zip(process.updates, virtual.updates, strict=True)
        )
        if not equal(real, expected)
    ]
    if not apart:
        return
    rounding = rounding_of_sums(compressor)
    for number, real, expected in apart:
        sentence = (
            f"step {number}: real processes give another update than virtual workers do (a "
            "method sees each worker's row)"
        )
        demand(rounding > 0, sentence)
        for name in expected:
            error = (real[name].double() - expected[name].double()).norm()
            demand(
                error <= max(1e-5, 2.5 * rounding) * expected[name].double().norm(),
                f"{sentence}, of {name}",
            )


def equal(a: Grads, b: Grads) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def check_replicas(processes: Sequence[Trace]) -> None:
    """Check that all ranks apply the same updates."""
    first, *others = processes
    for other in others:
        for number in range(STEPS):
            demand(
                equal(other.updates[number], first.updates[number]),
                f"step {number}: ranks apply different updates; an update is computed from what "
                "all workers have",
            )


def check_residuals(virtual: Trace, processes: Sequence[Trace]) -> None:
    """Check that real workers keep the same states as virtual ones."""
    scale = max(float(flat(update).abs().max()) for update in virtual.updates)
    for number in range(STEPS):
        for depth, expected in enumerate(virtual.residuals[number]):
            for name, rows in expected.items():
                real = torch.cat([process.residuals[number][depth][name] for process in processes])
                close = real.shape == rows.shape and torch.allclose(
                    real, rows, rtol=1e-4, atol=1e-5 * scale
                )
                demand(
                    close,
                    f"step {number}: real workers keep another state of {name} than virtual "
                    "workers do",
                )


def check_bits(virtual: Trace, processes: Sequence[Trace]) -> None:
    """Check that the same bits are counted for real and virtual workers, and more than none."""
    for what in ("sent_bits", "received_bits"):
        real = [bits for process in processes for bits in getattr(process, what)]
        expected = getattr(virtual, what)
        demand(real == expected, f"real workers count {what}={real}, virtual ones {expected}")
    demand(min(virtual.sent_bits) > 0, "a worker sends nothing: what it shares goes through comm")


LAYOUTS = {"4 processes": 4, "2 x 2": 2}
TIMEOUT = timedelta(minutes=1)

Traces = dict[str, list[list[Trace]]]
"""Traces keyed by layout, then by compressor and process."""


def traces_over_gloo(nodes: Sequence[Config]) -> Traces:
    """Return the traces of every compressor in every layout, by process.

    Processes are started once for both layouts, as this takes seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_processes(_trace_here, (nodes, folder), max(LAYOUTS.values()))
        by_process = {
            layout: [
                torch.load(Path(folder) / f"{size}-{rank}.pt", weights_only=False)
                for rank in range(size)
            ]
            for layout, size in LAYOUTS.items()
        }
    return {
        layout: [list(traces) for traces in zip(*by_process[layout], strict=True)]
        for layout in LAYOUTS
    }


def _trace_here(nodes: Sequence[Config], folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # as in `check_method`
    rank = int(os.environ["RANK"])
    for size in LAYOUTS.values():
        if rank < size:
            meeting = f"file://{folder}/{size}"
            dist.init_process_group(
                "gloo", init_method=meeting, rank=rank, world_size=size, timeout=TIMEOUT
            )
            world = cast(dist.ProcessGroup, dist.group.WORLD)
            transport = GlooTransport(world)
            traces = [trace(make_compressor(node), Comm(WORKERS, transport)) for node in nodes]
            torch.save(traces, Path(folder) / f"{size}-{rank}.pt")
            dist.destroy_process_group()
