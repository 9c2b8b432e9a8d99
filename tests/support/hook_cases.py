"""Loops that take a communication hook of torch's public signature, as Lightning's do."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accumulation_cases import backward
from gloo_pool import Process
from library_cases import Net, message_of, parameters
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

import gcbench


def train(ddp: nn.Module, rank: int, steps: Sequence[int]) -> list[Tensor]:
    """Train with SGD on some batches, and return the parameters."""
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    for step in steps:
        optimizer.zero_grad()
        backward(ddp, rank, step)
        optimizer.step()
    return parameters(ddp)


def train_with_both(
    process: Process, choices: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[Any, ...]]:
    """Return what becomes of `compress` and of a hook that is restarted half way: the parameters
    of each, their handles, and what they sent.
    """
    seen = {}
    for name, knobs in choices.items():
        ours, first, second = (
            DistributedDataParallel(Net(), bucket_cap_mb=0.001) for _ in range(3)
        )
        compression = gcbench.compress(ours, name, **knobs)
        expected = train(ours, process.rank, range(4))
        state, hook = gcbench.comm_hook(name, **knobs)
        first.register_comm_hook(state, hook)
        with torch.no_grad():
            first(torch.ones(1, 12))  # an evaluation, which need not take place on all workers
        train(first, process.rank, range(2))
        torch.save(state.state_dict(), file := io.BytesIO())
        # As where a strategy is sent to the processes that it starts.
        resumed, hook = pickle.loads(pickle.dumps(gcbench.comm_hook(name, **knobs)))
        resumed.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
        second.load_state_dict(first.state_dict())
        second.register_comm_hook(resumed, hook)
        got = train(second, process.rank, range(2, 4))
        assert compression.memory == resumed.memory
        handles = (compression, resumed)
        messages = [handle.state_dict()["meter"] for handle in handles]
        seen[name] = (expected, got, *map(repr, handles), *messages)
    return seen


def hooked(name: str, **knobs: Any) -> tuple[DistributedDataParallel, Any]:
    ddp = DistributedDataParallel(Net())
    state, hook = gcbench.comm_hook(name, **knobs)
    ddp.register_comm_hook(state, hook)
    return ddp, state


def hooks_of_others(process: Process) -> dict[str, tuple[list[Tensor], list[Tensor]]]:
    """Return what trained parameters are and should be, by what was done with a hook."""
    plain = train(DistributedDataParallel(Net()), process.rank, range(3))
    removed, state = hooked("scaled_sign")
    state.remove()  # before its DDP is known
    seen = {"removed": (train(removed, process.rank, range(3)), plain)}
    assert state.bits_sent == state.memory == 0
    compiled, state = hooked("none")
    module = torch.compile(compiled, backend="eager")
    seen["compiled"] = (train(module, process.rank, range(3)), plain)
    assert state.ratio == 1 and state.error
    wrapped = DistributedDataParallel(Net())
    state, hook = gcbench.comm_hook("none")
    wrapped.register_comm_hook(state, fp16_compress_wrapper(hook))
    seen["wrapped"] = (train(wrapped, process.rank, range(3)), plain)
    assert state.ratio == 1
    torch.save(compiled, file := io.BytesIO())
    torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    return seen


def mistakes_with_hooks(process: Process) -> dict[str, str]:
    """Return the sentences that refuse a hook, by case."""
    state, hook = gcbench.comm_hook("none")
    seen = {
        "name": message_of(lambda: gcbench.comm_hook("powersdg")),
        "seed": message_of(lambda: gcbench.comm_hook("none", seed=-1)),
        "early": message_of(state.state_dict),
    }
    assert repr(state) == "<gcbench.comm_hook none: not used>"
    two = [DistributedDataParallel(Net()) for _ in range(2)]
    for ddp in two:
        ddp.register_comm_hook(state, hook)
    train(two[0], process.rank, [0])
    seen["two"] = message_of(lambda: train(two[1], process.rank, [0]))
    ddp, state = hooked("none")
    seen["unseen"] = message_of(lambda: backward(ddp.forward, process.rank, 0))
    sparse = DistributedDataParallel(nn.Embedding(9, 4, sparse=True))
    sparse.register_comm_hook(*gcbench.comm_hook("none"))
    for _ in range(2):  # it is not used in silence after that
        seen["sparse"] = message_of(lambda: sparse(torch.tensor([1])))
    taken, _ = hooked("none")
    seen["taken"] = message_of(lambda: gcbench.compress(taken, "none"))
    return seen
