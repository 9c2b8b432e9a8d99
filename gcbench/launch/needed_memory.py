"""The memory that a run needs, and the memory that this machine has."""

from __future__ import annotations

import os
from pathlib import Path

from gcbench.compressors import Compressor, parts_of
from gcbench.compressors.bucketed import Bucketed
from gcbench.compressors.build import Feedback
from gcbench.compressors.dense import Dense
from gcbench.launch.plan import Plan
from gcbench.train.run import Estimator

# Memory at the peak of a step, in copies of the parameters, measured with 1 to 8 virtual workers. A
# process has weights, momentum and update, and more while eager code handles a large tensor.
OF_PROCESS = 6
OF_BUCKETS = 10
# A worker has gradient, payload, residual and one copy in flight; without a residual, fewer.
OF_WORKER = 7
OF_LEAN_WORKER = 2


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
