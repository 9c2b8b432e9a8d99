"""The memory of this machine: what a run needs, what is free, and how freed memory is reused."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from contextlib import suppress
from pathlib import Path

import torch

from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.dense import Dense
from gcbench.core.wrappers.build import Feedback
from gcbench.core.wrappers.virtual import parts_of
from gcbench.runner.launch.plan import Plan
from gcbench.runner.train.run import Estimator

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # glibc's mallopt(3)
# Memory at the peak of a step, in copies of the parameters, measured with 1 to 8 virtual workers. A
# process has weights, momentum and update, and more while eager code handles a large tensor.
OF_PROCESS = 6
OF_BUCKETS = 10
# A worker has gradient, payload, residual and one copy in flight; without a residual, fewer.
OF_WORKER = 7
OF_LEAN_WORKER = 2


def check_memory(plan: Plan, parameters: int, compressor: Compressor, estimator: Estimator) -> None:
    """Raise ConfigError if a plan needs more memory than is free."""
    needed = needed_bytes(plan, parameters, compressor, estimator, plan.workers)
    free = _free_bytes(plan)
    if needed > free:
        give_back_freed_memory()
        free = _free_bytes(plan)
    if needed > free:
        fitting = next(
            (
                w
                for w in range(plan.workers - 1, 0, -1)
                if needed_bytes(plan, parameters, compressor, estimator, w) <= free
            ),
            None,
        )
        several = (
            f"type trainer.workers={fitting} or fewer, or spread the workers over more machines"
        )
        advice = several if fitting else "choose a smaller model=, or a machine with more memory"
        raise ConfigError(
            f"trainer.workers={plan.workers}: gradients of {parameters:,} values for "
            f"{plan.workers} workers need about {needed / 2**30:.1f} GiB here, "
            f"{free / 2**30:.1f} GiB are free; {advice}"
        )


def _free_bytes(plan: Plan) -> int:
    return torch.cuda.mem_get_info()[0] if plan.device == "cuda" else free_bytes()


def needed_bytes(
    plan: Plan, parameters: int, compressor: Compressor, estimator: Estimator, workers: int
) -> int:
    """Return the bytes, without activations, that a plan needs if it has `workers` workers."""
    parts = list(parts_of(compressor))
    processes = min(plan.local_processes, workers) if plan.device == "cpu" else 1
    remembers = any(isinstance(part, Feedback) for part in parts)
    lean = any(isinstance(part, (Bucketed, Dense)) for part in parts) and not remembers
    of_process = OF_PROCESS + OF_BUCKETS * any(isinstance(part, Bucketed) for part in parts)
    of_worker = (OF_LEAN_WORKER if lean else OF_WORKER) + estimator.worker_copies
    rows = workers if plan.processes == 1 else plan.workers // plan.processes
    return 4 * parameters * processes * (of_process + of_worker * rows)


def free_bytes() -> int:
    """Return the bytes that can be allocated without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reset_peak(device: torch.device) -> None:
    """Forget the peak of what this process has taken so far, as in a sweep's earlier rows."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Return the most that this process has taken: of memory or, on a GPU, in tensors there."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:  # not inherited from the process that started this one, as what getrusage says
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def keep_freed_memory() -> None:
    """Tell glibc, if it is in use, not to return freed memory to the system.

    By default every tensor above 32 MiB is mapped anew, and touching its pages takes longer than a
    codec takes to fill them. Trimming the heap costs as much: 16 virtual workers of an LSTM free
    gigabytes per step, more than a threshold can express. Threads that start later, such as that of
    overlapped exchanges, share the heap of the main thread: a heap of their own would map each
    tensor above 64 MiB anew, whatever the thresholds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(threshold, -1)  # never: as a size_t, -1 is the largest value
        mallopt(_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Return freed memory of this process to the system and to the GPU's driver.

    Otherwise the memory check of the next run in a sweep would count it as used.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
