"""Backward passes beside which buckets are exchanged."""

from __future__ import annotations

import time
from typing import Any

import torch
from accumulation_cases import backward
from gloo_pool import Process
from hook_cases import train
from library_cases import Net
from needed import patience
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

import gcbench


class Wait(torch.autograd.Function):
    """Wait in the backward pass until a bucket was sent, or for a second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, handle: list[gcbench.Compression]) -> Tensor:
        ctx.handle, ctx.before = handle[0], _sent(handle[0])
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        end = time.monotonic() + patience(1)
        while _sent(ctx.handle) == ctx.before and time.monotonic() < end:
            time.sleep(0.001)
        Wait.seen = _sent(ctx.handle) > ctx.before
        return gradient, None

    seen = False


class Waiting(nn.Module):
    """Two layers, of which the first gets its gradient after the last one's was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 12), nn.Linear(12, 4)
        self.handle: list[gcbench.Compression] = []

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(Wait.apply(self.first(inputs), self.handle))
        return outputs


def exchanged_under_the_backward_pass(process: Process, method: str, overlap: bool) -> bool:
    """Return whether the last layer's gradients were sent before the first ones were there."""
    ddp = DistributedDataParallel(Waiting(), bucket_cap_mb=0.0001)
    knobs = {"min_size": 0} if method == "qsgd" else {}
    ddp.module.handle.append(gcbench.compress(ddp, method, overlap=overlap, **knobs))
    for step in range(2):  # the first has a single bucket
        backward(ddp, process.rank, step)
    return Wait.seen


def train_by_means(process: Process) -> dict[str, tuple[list[Tensor], list[Tensor]]]:
    """Return the parameters after steps of plain means, beside those of PyTorch's own hooks."""
    hooks = {"none": None, "fp16": fp16_compress_hook, "bf16": bf16_compress_hook}
    trained = {}
    for method, hook in hooks.items():
        ours, torchs = (DistributedDataParallel(Net(), bucket_cap_mb=0.001) for _ in range(2))
        gcbench.compress(ours, method)
        if hook is not None:
            torchs.register_comm_hook(None, hook)
        trained[method] = train(ours, process.rank, range(3)), train(torchs, process.rank, range(3))
    return trained


def restart_by_means(process: Process) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters after steps with a bucket for each tensor, without and with a restart.

    DDP has a single bucket in its first step.
    """
    trained = []
    for restarts in (False, True):
        ddp = DistributedDataParallel(Net(), bucket_cap_mb=1e-6)
        handle = gcbench.compress(ddp, "none")
        train(ddp, process.rank, range(2))
        if restarts:
            again = DistributedDataParallel(Net(), bucket_cap_mb=1e-6)
            again.module.load_state_dict(ddp.module.state_dict())
            resumed = gcbench.compress(again, "none")
            resumed.load_state_dict(handle.state_dict())
            ddp = again
        trained.append(train(ddp, process.rank, range(2, 4)))
    return trained[0], trained[1]


def train_with_nodes(process: Process) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters after steps of a method with nodes, without and with overlap."""
    trained = []
    for overlap in (False, True):
        ddp = DistributedDataParallel(Net(), bucket_cap_mb=0.001)
        knobs = {"exchange": "hierarchical", "workers_per_node": 1, "min_size": 0}
        gcbench.compress(ddp, "qsgd", overlap=overlap, **knobs)
        trained.append(train(ddp, process.rank, range(3)))
    return trained[0], trained[1]


def _sent(handle: gcbench.Compression) -> int:
    """Return what was handed to collectives so far, also by an exchange that is under way."""
    return handle._exchange.comm.meter.sent_bits[0]
