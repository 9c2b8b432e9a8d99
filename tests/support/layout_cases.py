"""Steps of compressors in any layout; importing this module composes no configuration."""

from __future__ import annotations

from typing import Any

from gloo_pool import Process

from gcbench.check.steps import WORKERS, Trace, trace
from gcbench.comm import Comm, NcclTransport
from gcbench.compressors import Compressor


def traces_over_gloo(
    process: Process, compressors: dict[Any, Compressor], workers: int = WORKERS
) -> dict[Any, Trace]:
    return {
        key: trace(compressor, process.comm(workers)) for key, compressor in compressors.items()
    }


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
