"""The seconds of a process group's collectives, by a few short ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.core.comm.meter import Collective
from gcbench.core.comm.transport import Transport, transport_of
from gcbench.runner.predict.probes import Probes

SIZES = (2**10, 2**15, 2**20, 2**23)
ROUNDS = 7
UNTIMED = 2
LONG = 0.5  # seconds of a collective, after which no larger one is tried


def probe(group: dist.ProcessGroup, device: torch.device) -> Probes:
    """Return the seconds of collectives of a few sizes; all processes of the group call this.

    The slowest process counts. Sizes end where a collective takes longer than half a second.
    """
    transport = transport_of(group, device)
    found: dict[Collective, dict[int, float]] = {}
    calls: dict[Collective, Callable[[Transport, Tensor], None]] = {
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "all_to_all": _all_to_all,
    }
    for name, call in calls.items():
        seconds: dict[int, float] = {}
        for size in SIZES:
            taken = [_seconds(call, transport, size, device) for _ in range(UNTIMED + ROUNDS)]
            slowest = torch.tensor(median(taken[UNTIMED:]), device=device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
            seconds[size] = float(slowest)
            if seconds[size] > LONG:
                break
        found[name] = seconds
    return found


def _seconds(
    call: Callable[[Transport, Tensor], None], transport: Transport, size: int, device: torch.device
) -> float:
    values = torch.ones(size // 4, device=device)
    _wait(device)
    transport.all_reduce(torch.ones(1, device=device), "sum")  # all begin at once
    _wait(device)
    begin = time.perf_counter()
    call(transport, values)
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _all_reduce(transport: Transport, values: Tensor) -> None:
    transport.all_reduce(values, "sum")


def _all_gather(transport: Transport, values: Tensor) -> None:
    transport.all_gather(values.view(1, -1).view(torch.uint8))


def _all_to_all(transport: Transport, values: Tensor) -> None:
    processes = transport.processes
    width = 4 * values.numel() // processes
    transport.all_to_all(values.view(torch.uint8)[: processes * width].view(processes, 1, width))
