"""Aggregation between real processes, timed beside dense aggregation and PyTorch's PowerSGD."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from gcbench.core.codecs.kernels import Backend, use_backend
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import group_beside, transport_of
from gcbench.core.compressor import Compressor, Grads, flatten_each
from gcbench.core.meeting import join
from gcbench.core.methods.dense import Dense
from gcbench.core.methods.powersgd import PowerSGD
from gcbench.core.wrappers.virtual import Stepper, parts_of
from gcbench.runner.bench.local import InputOf
from gcbench.runner.bench.timing import Row, mean_seconds, ratio_in_turn, seconds, slowest
from gcbench.runner.control import ProcessGroupControl
from gcbench.runner.launch.memory import keep_freed_memory
from gcbench.runner.records.clock import Clock

UNTIMED = 3
TIMEOUT = timedelta(minutes=10)


def measure_here(
    compressor: Compressor,
    input_of: InputOf,
    rounds: int,
    threads: int,
    backend: Backend,
    kind: str,
    answer: str,
) -> None:
    """Measure as one of the processes; the first one writes the rows to the file `answer`.

    `kind` is `cpu`, where gloo joins the processes, or `cuda`, where NCCL joins one per GPU.
    """
    torch.set_num_threads(threads)
    use_backend(backend)
    keep_freed_memory()
    device = torch.device(kind)
    if kind == "cuda":
        device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        group = join("nccl", timeout=TIMEOUT, device_id=device)
    else:
        group = join("gloo", timeout=TIMEOUT)
    with group:
        world = cast(dist.ProcessGroup, dist.group.WORLD)
        control = ProcessGroupControl(gloo_group())
        rows = _rows(compressor, input_of, rounds, world, control, device)
        if world.rank() == 0:
            Path(answer).write_text(json.dumps(rows))


def _rows(
    compressor: Compressor,
    input_of: InputOf,
    rounds: int,
    group: dist.ProcessGroup,
    control: ProcessGroupControl,
    device: torch.device,
) -> list[Row]:
    grads = input_of(device, group.rank()).grads
    workers = group.size()
    clocks = {"method": Clock(device), "dense": Clock(device)}
    transport = transport_of(group, device)
    steps = {
        name: _timed_step(Stepper(c, grads, Comm(workers, transport, clocks[name])), clocks[name])
        for name, c in (("method", compressor), ("dense", Dense()))
    }
    hook = _hook(compressor, grads, group)
    if hook is not None:
        steps["powerSGD_hook"] = hook
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(UNTIMED + rounds):
        for name, step in steps.items():
            control.barrier()
            times[name].append(seconds(step, device))
    timed = slowest({name: of_one[UNTIMED:] for name, of_one in times.items()}, control)
    exchange = {
        name: mean_seconds(control.gather(clock.take()))["exchange"]
        for name, clock in clocks.items()
    }
    return [
        {
            "what": name,
            "workers": workers,
            "values": sum(g.numel() for g in grads.values()),
            "milliseconds": 1e3 * median(of_step),
            "exchange_milliseconds": 1e3 * exchange[name] if name in exchange else None,
            "of_dense": ratio_in_turn(of_step, timed["dense"]),
        }
        for name, of_step in timed.items()
    ]


def _timed_step(stepper: Stepper, clock: Clock) -> Callable[[], None]:
    def step() -> None:
        clock.lap("compress")
        stepper.step()
        clock.end_step()

    return step


def _hook(
    compressor: Compressor, grads: Grads, group: dist.ProcessGroup
) -> Callable[[], None] | None:
    """Return a step of PyTorch's PowerSGD hook; None if the method is not PowerSGD.

    The gradients come in one bucket, as DistributedDataParallel would hand them to the hook.
    """
    ranks = [part.rank for part in parts_of(compressor) if isinstance(part, PowerSGD)]
    if not ranks:
        return None
    state = hook_state(group, ranks[0])
    bucket: Any = _Bucket(grads)

    def step() -> None:
        powerSGD_hook(state, bucket).wait()

    return step


class _Bucket:
    """A `GradBucket` for the hook, refilled before every step as by a backward pass."""

    def __init__(self, grads: Grads) -> None:
        self._full = torch.cat(flatten_each(grads), dim=1)[0]
        self._buffer = self._full.clone()
        parts = self._buffer.split([g.numel() for g in grads.values()])
        self._gradients = [
            part.view(g.shape[1:]) for part, g in zip(parts, grads.values(), strict=True)
        ]

    def buffer(self) -> Tensor:
        return self._buffer.copy_(self._full)  # the hook overwrites it with its result

    def gradients(self) -> list[Tensor]:
        return self._gradients

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def hook_state(group: dist.ProcessGroup | None, rank: int) -> PowerSGDState:
    """Return the state of PyTorch's PowerSGD hook that compresses every matrix from step 2 on."""
    return PowerSGDState(
        group, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1
    )


def gloo_group() -> dist.ProcessGroup:
    """Return a new group of all processes."""
    return group_beside(cast(dist.ProcessGroup, dist.group.WORLD), backend="gloo")
