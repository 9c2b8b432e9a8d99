"""Training loops that are profiled, in processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo_pool import Process
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gcbench
from gcbench.core.errors import ConfigError

SIZES = (24, 32, 4)
METHODS = ("qsgd min_size=0", "powersgd rank=1")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 4))


def ddp() -> DistributedDataParallel:
    return DistributedDataParallel(model(), bucket_cap_mb=0.001)


def train(module: nn.Module, rank: int, steps: int, micro: int = 1) -> list[Tensor]:
    """Train, and return each step's own gradients of this worker's last micro-batches."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for i in range(micro):
            inputs = torch.randn(8, 24, generator=generator)
            if isinstance(module, DistributedDataParallel):
                module.require_backward_grad_sync = i == micro - 1  # as no_sync() does
            loss = module(inputs).square().mean()
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    return losses


def weights(module: nn.Module) -> list[Tensor]:
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in module.parameters()]
    return [p.detach().clone() for p in whole]


def hooks_of(module: nn.Module) -> int:
    """Return how many hooks a module and its parameters have."""
    of_parameters = sum(
        len(p._post_accumulate_grad_hooks or ()) + len(p._backward_hooks or ())
        for p in module.parameters()
    )
    return of_parameters + len(module._forward_pre_hooks)


def beside(process: Process, micro: int) -> tuple[bool, int, int, dict[str, Any]]:
    """Return whether weights are those of the loop without a profile, hooks before and after, and
    what was measured."""
    plain, profiled = ddp(), ddp()
    before = hooks_of(profiled)
    train(plain, process.rank, 16, micro)
    with gcbench.profile(profiled, METHODS) as profile:
        train(profiled, process.rank, 16, micro)
    equal = all(map(torch.equal, weights(plain), weights(profiled)))
    train(profiled, process.rank, 2)
    job = profile.job
    facts = {
        "values": job.values,
        "buckets": [bucket.values for bucket in job.buckets],
        "ready": [bucket.ready_seconds for bucket in job.buckets],
        "seconds": (job.step_seconds, job.compute_seconds, job.exposed_seconds),
        "errors": {one.typed: one.vnmse for one in job.methods},
        "text": str(profile),
    }
    return equal, before, hooks_of(profiled), facts


def save(process: Process, file: str) -> None:
    profiled = ddp()
    with gcbench.profile(profiled, METHODS) as profile:
        train(profiled, process.rank, 8)
    profile.save(file)
    dist.barrier()
    assert Path(file).exists()


def local_gradients(process: Process) -> bool:
    """Return whether what is copied is this worker's gradient of all micro-batches."""
    profiled, own = ddp(), model()
    steps = 7
    with gcbench.profile(profiled, METHODS) as profile:
        train(profiled, process.rank, steps, micro=2)
    copied = profile._watch.gradients
    # The same loop with DDP's means, whose own gradients are taken apart at the copied steps.
    again, right = ddp(), []
    optimizer = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(process.rank)
    for number in range(steps):
        own.load_state_dict(again.module.state_dict())
        own.zero_grad()
        optimizer.zero_grad()
        for i in range(2):
            inputs = torch.randn(8, 24, generator=generator)
            own(inputs).square().mean().backward()
            again.require_backward_grad_sync = i == 1
            again(inputs).square().mean().backward()
        if number in (3, 6):
            right.append({name: p.grad.clone() for name, p in own.named_parameters()})
        optimizer.step()
    return len(copied) == len(right) == 2 and all(
        torch.allclose(got[name][0], one[name], atol=1e-6)
        for got, one in zip(copied, right, strict=True)
        for name in one
    )


def raised(process: Process) -> tuple[int, int]:
    profiled = ddp()
    before = hooks_of(profiled)
    try:
        with gcbench.profile(profiled, METHODS):
            train(profiled, process.rank, 3)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    train(profiled, process.rank, 2)
    return before, hooks_of(profiled)


def slow_backward(process: Process) -> tuple[float, float, float]:
    """Return the seconds of a step and of the backward pass in which one worker sleeps."""

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            time.sleep(0.05 * process.rank)
            return gradient

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(24, 32), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(Sleep.apply(self.first(x)))
            return out

    torch.manual_seed(0)
    profiled = DistributedDataParallel(Slow(), bucket_cap_mb=0.0001)
    with gcbench.profile(profiled, METHODS) as profile:
        train(profiled, process.rank, 9)
    job = profile.job
    return job.step_seconds, job.compute_seconds, job.buckets[-1].ready_seconds


def refusals(process: Process) -> list[str]:
    """Return what is refused of a profile, a sentence each."""
    compressed, hooked = ddp(), ddp()
    handle = gcbench.compress(compressed, "qsgd")
    hooked.register_comm_hook(None, lambda _, bucket: None)
    said = []
    for module in (model(), compressed, hooked):
        try:
            gcbench.profile(module)
        except ConfigError as error:
            said.append(str(error))
    handle.remove()
    for steps in (4, 8 + process.rank):
        profiled = ddp()
        try:
            with gcbench.profile(profiled, METHODS):
                if steps < 8:
                    train(profiled, process.rank, steps)
                else:
                    train(profiled, process.rank, 8)
                    if process.rank:
                        profiled.require_backward_grad_sync = False
                        profiled(torch.randn(8, 24))
        except ConfigError as error:
            said.append(str(error))
    try:
        gcbench.profile(compressed, ["qsdg"])
    except ConfigError as error:
        said.append(str(error))
    return said


def of_fsdp(process: Process) -> tuple[bool, dict[str, Any]]:
    """Return whether weights are those of the loop without a profile, and what was measured."""
    modules = []
    for _ in range(2):
        module = model()
        fully_shard(module[0])
        fully_shard(module)
        modules.append(module)
    plain, profiled = modules
    train(plain, process.rank, 10)
    with gcbench.profile(profiled, METHODS) as profile:
        train(profiled, process.rank, 10)
    equal = all(map(torch.equal, weights(plain), weights(profiled)))
    handle = gcbench.compress(profiled, "qsgd", bits=4)  # nothing is in its way
    train(profiled, process.rank, 2)
    job = profile.job
    return equal and handle.bits_sent > 0, {
        "kind": job.kind,
        "values": job.values,
        "buckets": [bucket.values for bucket in job.buckets],
        "methods": [one.typed for one in job.methods],
    }
