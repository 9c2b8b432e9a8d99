"""Steps of methods between real processes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist

from gcbench.check.steps import WORKERS, Trace, trace
from gcbench.comm import ProcessGroupComm
from gcbench.config import Config
from gcbench.launch.instantiate import make
from gcbench.launch.local import run_processes

TIMEOUT = timedelta(minutes=1)


def traces_over_gloo(nodes: Sequence[Config], processes: int) -> list[list[Trace]]:
    """Of each compressor, what each process saw."""
    with tempfile.TemporaryDirectory() as folder:
        run_processes(_trace_here, (nodes, folder), processes)
        by_process = [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(processes)]
    return [list(traces) for traces in zip(*by_process, strict=True)]


def _trace_here(nodes: Sequence[Config], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    try:
        world = cast(dist.ProcessGroup, dist.group.WORLD)
        traces = [trace(make(node, "compressor"), ProcessGroupComm(WORKERS, world)) for node in nodes]
        torch.save(traces, Path(folder) / f"{world.rank()}.pt")
    finally:
        dist.destroy_process_group()
