"""Steps of methods between real processes."""

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

from gcbench.check.steps import WORKERS, Trace, trace
from gcbench.comm.collectives import Comm
from gcbench.comm.transport import GlooTransport
from gcbench.config import Config
from gcbench.launch.instantiate import make_compressor
from gcbench.launch.local import run_processes

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
