"""Loops of users whose backward passes under DDP add up in `p.grad`, without no_sync()."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from gloo_pool import Process
from library_cases import Net, batch, gradients, message_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gcbench
from gcbench.core.library.ddp import DdpCompression


def add_up_micro_batches(
    process: Process, choices: Mapping[str, Mapping[str, Any]], seed: int
) -> dict[str, tuple[list[Tensor], list[Tensor], int, int]]:
    """Return for each choice `p.grad` after steps of several exchanges, what is right, and bits.

    Right is the sum of the updates of a twin whose gradients are set to None after each exchange,
    with whatever the user does to `p.grad` in between.
    """
    seen = {}
    for name, knobs in choices.items():
        draw = random.Random(f"{seed} {name}")
        as_view = draw.random() < 0.5
        ours, twin = (
            DistributedDataParallel(
                Net(), gradient_as_bucket_view=as_view, bucket_cap_mb=draw.choice([0.001, 25])
            )
            for _ in range(2)
        )
        compressions = [gcbench.compress(ddp, name, **knobs) for ddp in (ours, twin)]
        got, right = [], []
        for step in range(4):
            ours.zero_grad(set_to_none=draw.random() < 0.5)
            sums: list[Tensor] = []
            for micro in range(draw.choice([2, 3])):
                scale, size = draw.choice([-1e3, -1, 1e-3, 1]), draw.randint(1, 8)
                quiet = micro == 0 and draw.random() < 0.5  # another one under no_sync() before
                twin.zero_grad()
                for ddp in (ours, twin):
                    if quiet:
                        with ddp.no_sync():
                            backward(ddp, process.rank, 999 - step, size)
                    backward(ddp, process.rank, 10 * step + micro, size, scale)
                clip = draw.choice([1.0, 0.5])
                sums = sums or [torch.zeros_like(x) for x in gradients(twin)]
                sums = [(a + b) * clip for a, b in zip(sums, gradients(twin), strict=True)]
                for p in ours.parameters():
                    p.grad *= clip
            got += gradients(ours)
            right += sums
        seen[name] = (got, right, *(compression.bits_sent for compression in compressions))
    return seen


def backward(
    model: Callable[..., Any], rank: int, step: int, size: int = 8, scale: float = 1
) -> None:
    inputs, targets = batch(rank, step, size)
    (scale * cross_entropy(model(inputs), targets)).backward()


class Branches(nn.Module):
    """A model of which each forward pass uses one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(12, 4) for _ in range(2)])
        self.last = nn.Linear(4, 4)

    def forward(self, inputs: Tensor, branch: int) -> Tensor:
        outputs: Tensor = self.last(self.layers[branch](inputs))
        return outputs


def use_branches(process: Process, as_view: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Return `p.grad` with `none` and of plain DDP, after exchanges that add up, for some steps.

    Workers use the same layer in some exchanges, and different ones in others.
    """
    models = [
        DistributedDataParallel(
            Branches(), find_unused_parameters=True, gradient_as_bucket_view=as_view
        )
        for _ in range(2)
    ]
    gcbench.compress(models[0], "none")
    seen: tuple[list[Tensor], list[Tensor]] = ([], [])
    for own, ddp in zip(seen, models, strict=True):
        for step, branches in enumerate([(0, 0), (0, 1), (1, 1), (1, 0), (0, 0)]):
            if step in (0, 3):
                ddp.zero_grad(set_to_none=step == 0)
            inputs, targets = batch(process.rank, step)
            cross_entropy(ddp(inputs, branches[process.rank]), targets).backward()
            own += gradients(ddp)
    return seen


def copies_of_updates(process: Process) -> list[tuple[int, int]]:
    """Return how many updates each exchange copied, and how many arrivals it watched.

    `zero_grad` came before all but the last, and set `p.grad` to None in the first four.
    """
    ddp = DistributedDataParallel(Net())
    compression = gcbench.compress(ddp, "powersgd")
    assert isinstance(compression, DdpCompression)
    finish, copies = compression.finish, []

    def count(taken: Sequence[Any], earlier: Sequence[Tensor], used: Any) -> None:
        copies.append((len(earlier), len(compression._hook._watching)))
        finish(taken, earlier, used)

    compression.finish = count  # type: ignore[method-assign]
    for set_to_none in (True, True, True, True, False, None):
        if set_to_none is not None:
            ddp.zero_grad(set_to_none)
        backward(ddp, process.rank, 0)
    return copies


def add_to_an_update(process: Process, case: str) -> str | list[tuple[Tensor, Tensor]]:
    """Return the error message of an exchange after others, or its gradients and those of a twin.

    What is added to the update before the last exchange is not exchanged, or not on all workers.
    """
    ddp, twin = (DistributedDataParallel(Net()) for _ in range(2))
    for model in (ddp, twin):
        gcbench.compress(model, "signum")
        backward(model, process.rank, 0)
    if "bare" in case:
        backward(ddp.module, process.rank, 1)
    if "quiet" in case:
        with ddp.no_sync():
            backward(ddp, process.rank, 1)
    if "own" in case:
        for p in ddp.parameters():
            p.grad += process.rank
    if "zeroed" in case:
        ddp.zero_grad(set_to_none=False)
    if "none" in case:
        ddp.zero_grad()
    twin.zero_grad()
    # A forward pass that is not seen, as where Accelerate triggers an exchange after it.
    forward = ddp.forward if case == "unseen" else ddp
    if message := message_of(lambda: backward(forward, process.rank, 2)):
        return message
    backward(twin, process.rank, 2)
    return list(zip(gradients(ddp), gradients(twin), strict=True))


def accumulate_in_a_static_graph(process: Process) -> tuple[str, list[Tensor], list[Tensor]]:
    """Return the message for no_sync() in the first step, and later gradients beside plain ones."""
    refused, static, plain = (
        DistributedDataParallel(Net(), static_graph=ddp != 2) for ddp in range(3)
    )
    for model in (refused, static, plain):
        gcbench.compress(model, "top_k", min_size=0)
    with refused.no_sync():
        sentence = message_of(lambda: backward(refused, process.rank, 0))
    seen = []
    for model in (static, plain):
        backward(model, process.rank, 0)
        for step in (1, 3):
            model.zero_grad()
            with model.no_sync():
                backward(model, process.rank, step)
            backward(model, process.rank, step + 1)
        seen.append(gradients(model))
    return sentence, *seen


def sparse_gradient(process: Process) -> str:
    """Return the error message for the gradient of a functional embedding that is sparse."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(9, 4))

        def forward(self, inputs: Tensor) -> Tensor:
            return nn.functional.embedding(inputs, self.table, sparse=True)

    ddp = DistributedDataParallel(Lookup())
    gcbench.compress(ddp, "none")
    return message_of(lambda: ddp(torch.tensor([process.rank])).sum().backward())
