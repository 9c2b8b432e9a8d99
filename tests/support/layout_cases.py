"""Steps of compressors in any layout; importing this module composes no configuration."""

from __future__ import annotations

from typing import Any

import torch
from gloo_pool import Process

from gcbench.core.codecs.kernels import keep_backend, use_backend
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import NcclTransport
from gcbench.core.compressor import Compressor, Grads
from gcbench.core.wrappers.virtual import aggregate
from gcbench.runner.check.steps import WORKERS, Trace, trace


def traces_over_gloo(
    process: Process, compressors: dict[Any, Compressor], workers: int = WORKERS
) -> dict[Any, Trace]:
    return {
        key: trace(compressor, process.comm(workers)) for key, compressor in compressors.items()
    }


def native_traces_over_gloo(
    process: Process, compressors: dict[Any, Compressor], default: torch.dtype
) -> dict[Any, Trace]:
    """Return the traces with native codecs where this is the user's default dtype."""
    with keep_backend():
        use_backend("native")
        torch.set_default_dtype(default)
        try:
            return traces_over_gloo(process, compressors)
        finally:
            torch.set_default_dtype(torch.float32)


def wire_bits_over_gloo(
    process: Process, compressors: dict[Any, Compressor], workers: int
) -> dict[Any, list[float]]:
    """Return the wire bits of this process's workers in one step of each compressor."""
    seen = {}
    for key, compressor in compressors.items():
        comm = process.comm(workers)
        aggregate(compressor, one_tensor(comm.local), comm=comm)
        seen[key] = comm.meter.wire_bits
    return seen


def means_of_halves(process: Process, workers: int, sizes: list[int]) -> list[torch.Tensor]:
    """Return the means of half-precision gradients, of one tensor of each size and type."""
    comm = process.comm(workers)
    return half_means(comm, sizes)


def half_means(comm: Comm, sizes: list[int]) -> list[torch.Tensor]:
    return [
        comm.mean([one_tensor(comm.local, n)["w"].to(dtype)])[0]
        for dtype in (torch.float16, torch.bfloat16)
        for n in sizes
    ]


def one_tensor(workers: range, values: int = 960) -> Grads:
    """Return gradients of one tensor, each worker's own."""
    rows = [torch.randn(values, generator=torch.Generator().manual_seed(k)) for k in workers]
    return {"w": torch.stack(rows)}


def traces_over_torchs_own(
    process: Process, compressors: dict[Any, Compressor], workers: int
) -> dict[Any, Trace]:
    """Return the traces with NcclTransport over gloo, which supports the same calls."""
    return {
        key: trace(compressor, Comm(workers, NcclTransport(process.world)))
        for key, compressor in compressors.items()
    }


def traces_in_one_process(
    compressors: dict[Any, Compressor], workers: int = WORKERS
) -> dict[Any, Trace]:
    return {key: trace(compressor, Comm(workers)) for key, compressor in compressors.items()}
