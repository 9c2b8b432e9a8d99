"""Steps of a DDP communication hook in forked processes, on gradients that are given."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gcbench.runner.check.report import place_of
from gcbench.runner.check.steps import SHAPES, gradients
from gcbench.runner.check.tcp import tcp_bytes
from gcbench.runner.ending import end_with
from gcbench.runner.launch.failure import describe_exit

SIZES = (2, 3, 5)
STEPS = 8
MANY_STEPS, MORE_STEPS = 60, 600  # of two; the latter for a hook that sends few values in a step
WARM_UP = 5  # steps before bytes are counted
NAN_STEP = 2
TIMEOUT = timedelta(seconds=20)
PATIENCE = 60.0  # seconds in which a process ends, whatever it waits for
# Attributes of a state that are full of what was not sent have such names.
MEMORY_WORDS = ("error", "feedback", "residual", "memory")


CALLBACK = re.compile(r"(\w+: Got the following error when running the callback: )+")


class HookSubject(NamedTuple):
    """A hook, or a function that makes one, by module and name."""

    module: str
    name: str
    settings: Mapping[str, Any]  # arguments of the function that makes it

    def make(self, group: dist.ProcessGroup) -> tuple[Any, Callable[..., Any]]:
        """Return a state and a hook for `register_comm_hook`."""
        function = getattr(importlib.import_module(self.module), self.name)
        if required_parameters(function) == 2:
            return None, function
        made = function(group, **self.settings)
        if isinstance(made, tuple) and len(made) == 2 and callable(made[1]):
            return made
        raise TypeError(f"{self.name} returned {type(made).__name__}, not a pair (state, hook)")


def required_parameters(function: Callable[..., Any]) -> int:
    """Return how many arguments a function needs: a hook two, a function that makes one fewer."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in kinds for p in parameters)


class Case(NamedTuple):
    """A model whose gradients are given, and the steps that are taken with it."""

    shapes: Mapping[str, tuple[int, ...]]
    steps: int = STEPS
    kind: str = ""  # what is special about its gradients
    sizes: Sequence[int] = SIZES


MATRIX = (32, 32)
USUAL = {k: shape for k, shape in SHAPES.items() if shape}  # a fault of 0-d tensors is told once
CASES = {
    "many steps": Case(USUAL, MANY_STEPS, "more", sizes=(2,)),
    "steps": Case(USUAL),
    "eight buckets": Case({f"layer {i}": MATRIX for i in range(8)}, kind="late"),
    "unused": Case(USUAL, kind="unused"),
    "empty": Case({"empty": (0,), "matrix": (5, 3), "no rows": (0, 4), "other": MATRIX}),
    "0-d": Case({"scalar": ()}),
    "uneven": Case({"one": (1,), "row": (7,), "matrix": (13, 3)}),
    "non-contiguous": Case({"matrix": (5, 3), "conv": (4, 2, 3, 2)}, kind="transposed"),
    "zeros": Case(USUAL, kind="zeros"),
    "NaN": Case(USUAL, kind="NaN"),
    "bytes": Case({"matrix": (512, 256), "bias": (512,)}, kind="counted", sizes=(2,)),
}


class Seen(NamedTuple):
    """The updates of one process in the steps of a case, and the bytes that it sent."""

    updates: Tensor  # `[steps, n]`: what DDP leaves in the gradients
    memory: str = ""  # the attribute of the state that promises error feedback
    sent: int = 0  # bytes of the steps that were counted
    claimed: int | None = None  # by the state, for the same steps


class Failed(NamedTuple):
    """Why a process failed, and when, in ns."""

    time: int
    reason: str


class GivenGradients(nn.Module):
    """Parameters whose gradients are the tensors that are passed in, by name."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.in_order = nn.ParameterList(_zeros(shape, case.kind) for shape in case.shapes.values())
        self.named = dict(zip(case.shapes, self.in_order, strict=True))

    def forward(self, given: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([(self.named[k] * g).sum() for k, g in given.items()]).sum()


def _zeros(shape: tuple[int, ...], kind: str) -> nn.Parameter:
    if kind != "transposed":
        return nn.Parameter(torch.zeros(shape))
    return nn.Parameter(torch.zeros(shape[::-1]).permute(*reversed(range(len(shape)))))


def mean_gradient(case: Case, workers: int) -> Tensor:
    """Return the mean of the workers' gradients, `[n]` in float64."""
    given = gradients(range(workers), 0, case.shapes)
    return torch.cat([g.double().mean(0).flatten() for g in given.values()])


def take_all_steps(subject: HookSubject, folder: str, cases: Mapping[str, Case]) -> None:
    """Take the steps of the cases, each in processes of its own, and leave what they saw.

    They are forked from this process, which has imported torch but not the hook, so that each case
    begins with new global variables, and one that crashes is noted.
    """
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # DDP imports it, which would take each process 5 s
    fork = get_context("fork")
    for name, case in cases.items():
        for size in case.sizes:
            place = Path(folder) / f"{name}-{size}"
            place.mkdir()
            children = [
                fork.Process(target=_work, args=(subject, case, rank, size, place, os.getpid()))
                for rank in range(size)
            ]
            for child in children:
                child.start()
            until = time.monotonic() + PATIENCE
            for rank, child in enumerate(children):
                child.join(max(0.0, until - time.monotonic()))
                if not (place / str(rank)).exists():
                    code = child.exitcode
                    why = f"no end in {PATIENCE:g} s" if code is None else describe_exit(code)
                    torch.save(Failed(time.time_ns(), why), place / str(rank))
                child.kill()
            if any(isinstance(seen, Failed) for seen in read(folder, name, size)):
                break  # one size is told, and those that follow may wait as long


def read(folder: str, name: str, size: int) -> list[Seen | Failed]:
    """Return what the processes of a case saw; nothing if they were not started."""
    place = Path(folder) / f"{name}-{size}"
    ranks = range(size) if place.exists() else ()
    return [torch.load(place / str(rank), weights_only=False) for rank in ranks]


def _work(subject: HookSubject, case: Case, rank: int, size: int, place: Path, parent: int) -> None:
    end_with(parent)
    seen: Seen | Failed
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{place}/meeting",
            rank=rank,
            world_size=size,
            timeout=TIMEOUT,
        )
        seen = _take_steps(subject, case, rank, size)
    except BaseException as error:
        first, *_ = str(error).strip().splitlines() or [""]
        told = CALLBACK.sub("in a callback: ", f"{type(error).__name__}: {first}")
        if "gloo" in told:
            told = f"ranks do not meet, as where their collectives come in other orders: {told}"
        seen = Failed(time.time_ns(), f"{told} ({place_of(error)})")
    torch.save(seen, place / f"{rank}.part")
    (place / f"{rank}.part").rename(place / str(rank))
    sys.stdout.flush()
    # Exit at once: gloo's threads, whose peers may be gone, would end the interpreter by SIGABRT.
    os._exit(0)


def _take_steps(subject: HookSubject, case: Case, rank: int, size: int) -> Seen:
    group = cast(dist.ProcessGroup, dist.group.WORLD)
    state, hook = subject.make(group)
    # Each of eight buckets has one layer, and what is sent in a step is one bucket.
    mib = 1e-4 if case.kind == "late" else 25
    model = GivenGradients(case)
    ddp = DistributedDataParallel(
        model, bucket_cap_mb=mib, find_unused_parameters=case.kind == "unused"
    )
    ddp.register_comm_hook(state, hook)
    turn = [0]
    if case.kind == "late":
        for i, p in enumerate(model.parameters()):
            p.register_hook(partial(_be_late, turn, i, rank, size))
    updates: list[Tensor] = []
    before: dict[str, int] = {}
    claimed_before: int | None = None
    for step in range(case.steps):
        turn[0] = step
        if case.kind == "counted" and step == WARM_UP:
            before, claimed_before = _tcp_bytes(), claimed_bytes(state)
        updates.append(_take_step(ddp, _given(case, step, rank, size)))
    if case.kind == "more" and _still_growing(case, updates, size):
        while len(updates) < MORE_STEPS:
            updates.append(_take_step(ddp, _given(case, 0, rank, size)))
    sent, claimed = 0, None
    if case.kind == "counted":
        sent = sum(n - before.get(inode, 0) for inode, n in _tcp_bytes().items())
        claimed = claimed_bytes(state)
        if claimed is not None and claimed_before is not None:
            claimed -= claimed_before
    dist.barrier()  # or a process that is done closes what another still counts
    return Seen(torch.stack(updates), memory_of(state), sent, claimed)


def _take_step(ddp: DistributedDataParallel, given: Mapping[str, Tensor]) -> Tensor:
    ddp.zero_grad()
    ddp(given).backward()
    grads = [(p, p.grad) for p in ddp.module.in_order]
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in grads])


def _given(case: Case, step: int, rank: int, size: int) -> dict[str, Tensor]:
    """Return the gradients of one worker, the same in all steps but for the kind of the case."""
    given = {k: g[0] for k, g in gradients([rank], 0, case.shapes).items()}
    if case.kind == "unused":
        if step % 2:
            del given["matrix"]  # no worker uses it
        del given["conv bias" if rank else "one"]  # DDP warns of a rank that uses all
        if rank != step % size:
            del given["row"]
    if case.kind == "zeros":
        given = {k: torch.zeros_like(g) for k, g in given.items()}
    if case.kind == "NaN" and step == NAN_STEP and rank == size - 1:
        given["matrix"][4, 7] = torch.nan
    return given


def _be_late(turn: Sequence[int], i: int, rank: int, size: int, _: Tensor) -> None:
    """Have the ranks reach the buckets of a step in turns."""
    if (turn[0] + i) % size == rank:
        time.sleep(0.003)


def left_behind(case: Case, updates: Tensor, workers: int) -> Tensor:
    """Return how far sums of updates are from those of mean gradients, after each step."""
    off = (updates.double() - mean_gradient(case, workers)).cumsum(0)
    return off.norm(dim=1)


GROWTH = 1.7  # 2 is linear growth; 1.4 is that of independent errors


def keeps_growing(left: Tensor, one: Tensor) -> bool:
    """Return whether more is left behind in the second half of all steps than in the first."""
    half = len(left) // 2
    return bool(left[half:].max() > GROWTH * left[:half].max() + one.norm())


def _still_growing(case: Case, updates: Sequence[Tensor], size: int) -> bool:
    left = left_behind(case, torch.stack(list(updates)), size)
    grows = torch.tensor(int(keeps_growing(left, mean_gradient(case, size))))
    dist.all_reduce(grows, dist.ReduceOp.MAX)  # ranks may differ, and take as many steps
    return bool(grows)


def _tcp_bytes() -> dict[str, int]:
    return tcp_bytes() if sys.platform == "linux" else {}


def memory_of(state: Any) -> str:
    """Return the name of an attribute that promises error feedback, or ""."""
    for name, value in _attributes(state).items():
        if any(word in name.lower() for word in MEMORY_WORDS):
            if isinstance(value, Tensor):
                value = value.numel() > 0
            if isinstance(value, (bool, Mapping, Sequence)) and value:
                return name
    return ""


def claimed_bytes(state: Any) -> int | None:
    """Return the bytes that a state says its worker has sent, or None."""
    attributes = _attributes(state)
    for name, factor in {
        "bytes_sent": 1.0,
        "bits_sent": 1 / 8,
        "total_numel_after_compression": 4.0,  # torch's PowerSGD counts float32 values
    }.items():
        value = attributes.get(name)
        if isinstance(value, (int, float)):
            return round(value * factor)
    return None


def _attributes(state: Any) -> dict[str, Any]:
    if isinstance(state, Mapping):
        return {str(k): v for k, v in state.items()}
    attributes = {}
    for name in () if state is None else dir(state):
        with suppress(Exception):  # a property may need what is not there
            if not name.startswith("__") and not callable(value := getattr(state, name)):
                attributes[name] = value
    return attributes
