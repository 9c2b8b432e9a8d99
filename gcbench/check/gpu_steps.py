"""Steps of a method as on a GPU, without having one: fake tensors on `cuda`, on 16 fake ranks.

Fake tensors have shapes, types and devices but no values. So a step on them launches nothing, yet
takes every branch that it takes on a GPU, and what it would launch, exchange and read back can be
counted.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gcbench
from gcbench.codecs.kernels import run_kernels_by
from gcbench.comm import Comm, NcclTransport
from gcbench.compressors import Compressor, State
from gcbench.compressors.virtual import aggregate

RANKS = 16
NCCL_TYPES = {  # the types that PyTorch maps to an ncclDataType_t
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}

# Places where the host has to wait for the GPU, and why.
CANNOT_DO_WITHOUT = {
    "codecs/low_rank.py svd": "torch.linalg.svd reads back whether cuSOLVER converged",
    "compressors/atomo.py _most": "as many atoms travel as were drawn",
    "comm/collectives.py _gather_ragged": "receivers need the lengths of what comes",
    "codecs/bitstream.py streams": "a message is as long as its longest row",
    "codecs/elias_sparse.py encode_sparse": "as many codes are written as are not zero",
    "codecs/entropy.py _counts": "the coder runs on the host",
}

_PACKAGE = Path(gcbench.__file__).parent
_CHECKS = Path(__file__).parent
_TORCH = Path(torch.__file__).parent


class KernelCall(NamedTuple):
    """A call of one kernel of `gcbench.codecs.kernels` with fake tensors."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def values(self) -> int:
        """Return the size of its largest tensor, by which calls of a kernel are told apart."""
        leaves = tree_leaves((self.args, self.kwargs))
        return max(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))


@dataclass
class ObservedStep:
    """The kernels, host waits and messages of one step of a method."""

    kernel_calls: list[KernelCall] = field(default_factory=list)
    # Operations of PyTorch outside kernels that launch at least one kernel or copy, by name.
    operations: Counter[str] = field(default_factory=Counter)
    # Places in gcbench (`file function`) where the host waits for values, with the operation.
    host_reads: dict[str, str] = field(default_factory=dict)
    exchanged: set[torch.dtype] = field(default_factory=set)
    cut_short: bool = False  # whether it ended at a host read that no made-up value can answer

    @property
    def launches(self) -> int:
        """Return a lower bound of the number of launches, if every kernel is one loop."""
        return len(self.kernel_calls) + self.operations.total()


def observe_step(compressor: Compressor, shapes: Mapping[str, tuple[int, ...]]) -> ObservedStep:
    """Return what a step does on one of 16 ranks of NCCL.

    It is the second step, as the first one creates the state; or the first, if it was cut short.
    """
    state = State()
    with _fake_ranks(), fake_tensors(), torch.no_grad():
        for number in range(2):
            grads = {k: torch.empty(1, *shape, device="cuda") for k, shape in shapes.items()}
            assert dist.group.WORLD is not None
            comm = Comm(RANKS, NcclTransport(dist.group.WORLD))
            watch = _Watch()
            try:
                with watch, run_kernels_by(watch.run_kernel):
                    out = aggregate(compressor, grads, number=number, state=state, comm=comm)
            except (DataDependentOutputException, DynamicOutputShapeException, RuntimeError):
                if not watch.step.host_reads:
                    raise
                watch.step.cut_short = True
                break
            state = out.state
    return watch.step


@cache
def fake_tensors() -> FakeTensorMode:
    """Return the only mode of fake tensors in this process.

    Tables that a method keeps from step to step cannot be combined with tensors of another mode.
    """
    # What this logger reports is also raised.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    return FakeTensorMode()


@contextmanager
def _fake_ranks() -> Iterator[None]:
    """Make this process rank 0 of a group whose exchanges bring nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


_WAITS = {  # operations whose results the host has to see
    "_local_scalar_dense",
    "_linalg_svd",
    "bincount",
    "equal",
    "masked_select",
    "nonzero",
    "_unique2",
}
_LAUNCH_NOTHING = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "lift_fresh",
}


class _Watch(TorchDispatchMode):
    """Records every operation on GPU tensors, and makes up the values that the host asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.step = ObservedStep()
        self._in_kernel = False

    def run_kernel(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.step.kernel_calls.append(KernelCall(function, args, kwargs))
        self._in_kernel = True
        try:
            return function(*args, **kwargs)
        finally:
            self._in_kernel = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        inputs = _tensors((args, kwargs))
        if func.namespace == "c10d":
            self.step.exchanged |= {x.dtype for x in inputs}
        kwargs = kwargs or {}
        if _makes_the_host_wait(name, inputs, kwargs.get("device")):
            place = _place(sys._getframe(1))
            self.step.host_reads.setdefault(place, f"{func.namespace}.{name}")
        if name == "_local_scalar_dense":
            return _ANSWERS[inputs[0].dtype.is_floating_point]
        result = func(*args, **kwargs)
        outputs = _tensors(result)
        if not self._in_kernel and _launches(func, name, inputs, outputs):
            self.step.operations[f"{func.namespace}.{name}"] += 1
        return result


_ANSWERS: dict[bool, float] = {True: 64.0, False: 64}  # made up for the host


def _makes_the_host_wait(name: str, inputs: list[Tensor], device: torch.device | None) -> bool:
    if not any(x.is_cuda for x in inputs):
        return False  # a value on the CPU was copied there before
    if name == "_to_copy":
        return device is not None and device.type == "cpu"
    if name == "copy_":
        return not inputs[0].is_cuda
    by_mask = name.startswith("index") and any(x.dtype == torch.bool for x in inputs[1:])
    return by_mask or name in _WAITS


def _launches(func: Any, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    if name in _LAUNCH_NOTHING or not any(x.is_cuda for x in [*inputs, *outputs]):
        return False
    storages = {x.untyped_storage()._cdata for x in inputs}
    is_view = all(x.untyped_storage()._cdata in storages for x in outputs)
    return func._schema.is_mutable or not is_view


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _place(frame: FrameType | None) -> str:
    """Return the file and the function that called torch, in a method of gcbench or of a user."""
    while frame is not None:
        path, function = Path(frame.f_code.co_filename), frame.f_code.co_name
        elsewhere = _TORCH in path.parents or _CHECKS in path.parents
        if not elsewhere and not function.startswith("<"):  # such as <listcomp>
            file = path.relative_to(_PACKAGE) if _PACKAGE in path.parents else path.name
            return f"{file} {function}"
        frame = frame.f_back
    raise AssertionError("a step is taken by somebody")
