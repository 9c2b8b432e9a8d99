"""Steps of a method as on a GPU, without having one: fake tensors on `cuda`, on 16 fake ranks.

Fake tensors have shapes, types and devices but no values. So a step on them launches nothing, yet
takes every branch that it takes on a GPU, and what it would launch, exchange and read back can be
counted.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gcbench
from gcbench.core.codecs.kernels import run_kernels_by
from gcbench.core.codecs.launches import Launch, observe_launches
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.ddp import Arrived
from gcbench.core.comm.transport import NcclTransport
from gcbench.core.compressor import Compressor, split_rows
from gcbench.core.library.compression import Typed
from gcbench.core.library.ddp import DdpCompression
from gcbench.core.library.exchange import Exchange

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
    "core/codecs/low_rank.py svd": "torch.linalg.svd reads back whether cuSOLVER converged",
    "core/methods/atomo.py _most": "as many atoms travel as were drawn",
    "core/wrappers/adaptive.py _read": "each tensor is sent as was chosen for it",
    "core/comm/collectives.py _gather_ragged": "receivers need the lengths of what comes",
    "core/codecs/elias.py streams": "a message is as long as its longest row",
    "core/codecs/elias_codes.py encode_sparse": "as many codes are written as are not zero",
    "core/codecs/packing.py _counts": "the coder runs on the host",
    "core/library/agreement.py choose": "whether the last one was kept says what ACP-SGD sends",
}

_PACKAGE = Path(gcbench.__file__).parent
_CHECKS = Path(__file__).parent
_TORCH = Path(torch.__file__).parent


class KernelCall(NamedTuple):
    """A call of one kernel of `gcbench.core.codecs.kernels` with fake tensors."""

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


Call = KernelCall | Launch


@dataclass
class ObservedStep:
    """The kernels, host waits and messages of one step of a method."""

    kernel_calls: list[Call] = field(default_factory=list)
    # Operations of PyTorch outside kernels that launch at least one kernel or copy, by name.
    operations: Counter[str] = field(default_factory=Counter)
    # Places in gcbench (`file function`) where the host waits for values, with the operation.
    host_reads: dict[str, str] = field(default_factory=dict)
    # Places where it copies from pageable memory to the GPU, for which the host waits, too.
    uploads: set[str] = field(default_factory=set)
    exchanged: set[torch.dtype] = field(default_factory=set)
    moved_bytes: int = 0  # read and written by all launches but collectives
    # Fewest bytes: gradients, messages that arrive and state are read; messages, updates and state
    # are written.
    floor_bytes: int = 0
    cut_short: bool = False  # whether it ended at a host read that no made-up value can answer

    @property
    def launches(self) -> int:
        """Return a lower bound of the number of launches, if every kernel is one loop."""
        return len(self.kernel_calls) + self.operations.total()

    @property
    def bytes_of_fewest(self) -> float:
        return self.moved_bytes / self.floor_bytes


def observe_step(compressor: Compressor, shapes: Mapping[str, tuple[int, ...]]) -> ObservedStep:
    """Return what the whole hook of `compress` does in a step on one of 16 ranks of NCCL.

    It is the fourth step, as the first ones make the state, of which ACP-SGD has two in turn; or an
    earlier one that was cut short.
    """
    with _fake_ranks() as group, fake_tensors(), torch.no_grad():
        module = nn.ParameterDict(
            {k: torch.empty(shape, device="cuda") for k, shape in shapes.items()}
        )
        ddp = cast(DistributedDataParallel, _Ddp(module, group))
        hook = _Hook(ddp, Typed(compressor, "", {}))
        comm = Comm(RANKS, NcclTransport(group))
        hook._exchange = _Exchange(compressor, comm, hook._device, group=group)
        whole = torch.empty(sum(map(math.prod, shapes.values())), device="cuda")
        views = split_rows(whole.unsqueeze(0), shapes)
        arrived = Arrived({p: views[name][0] for name, p in module.items()}, [whole])
        for _ in range(4):
            watch = _Watch()
            try:
                with (
                    watch,
                    run_kernels_by(watch.run_kernel),
                    observe_launches(watch.note_launch),
                ):
                    hook.finish([hook.take(arrived)], None, None)
            except _CUT_SHORT:
                if not watch.step.host_reads:
                    raise
                watch.step.cut_short = True
                watch.step.uploads.clear()  # of the tables that a first step makes
                break
        layers = hook._kept["gradient"].state.layers()
        kept = [
            x
            for layer in layers
            for part in (layer.shared, layer.per_worker)
            for x in part.values()
        ]
        watch.step.floor_bytes += 2 * sum(map(bytes_of, [whole, *kept]))
    return watch.step


class _Ddp(nn.Module):
    """A stand-in with the attributes of a DDP, whose own code does not run on fake tensors."""

    parameters_to_ignore: Collection[str] = ()
    _has_rebuilt_buckets = True
    find_unused_parameters = static_graph = False

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup) -> None:
        super().__init__()
        self.module, self.process_group = module, process_group

    def register_comm_hook(self, state: object, hook: object) -> None:
        """Do nothing: the step is taken by hand."""


class _Hook(DdpCompression):
    """A hook on ranks that bring nothing, and so have no arguments."""

    def _refuse_other_arguments(self, arguments: Mapping[str, Any]) -> None: ...


class _Exchange(Exchange):
    """Exchanges with ranks that bring nothing, which are not told from those of other steps."""

    def _refuse_difference(self) -> None: ...


@cache
def fake_tensors() -> FakeTensorMode:
    """Return the only mode of fake tensors in this process.

    Tables that a method keeps from step to step cannot be combined with tensors of another mode.
    """
    # What this logger reports is also raised.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    return FakeTensorMode()


@contextmanager
def _fake_ranks() -> Iterator[dist.ProcessGroup]:
    """Make this process rank 0 of a group whose exchanges bring nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        assert dist.group.WORLD is not None
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


# Errors of a step that goes on with a made-up answer, in place of a value that the host waits for.
_CUT_SHORT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    RuntimeError,
    KeyError,
)
_WAITS = {  # operations whose results the host has to see
    "_local_scalar_dense",
    "_linalg_svd",
    "bincount",
    "equal",
    "masked_select",
    "nonzero",
    "_unique2",
}
_OVERWRITING = {"copy_", "fill_", "zero_", "_foreach_copy_"}
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
        self._in_kernel: tuple[set[int], set[int]] | None = None  # storages read and written

    def run_kernel(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.step.kernel_calls.append(KernelCall(function, args, kwargs))
        self._in_kernel = (set(), set())
        try:
            result = function(*args, **kwargs)
            for x in _tensors((args, kwargs)):
                used = sum(_storage(x) in storages for storages in self._in_kernel)
                self.step.moved_bytes += used * bytes_of(x)
        finally:
            self._in_kernel = None
        self.step.moved_bytes += sum(map(bytes_of, _tensors(result)))
        return result

    def note_launch(self, launch: Launch) -> None:
        self.step.kernel_calls.append(launch)
        self.step.moved_bytes += sum(map(bytes_of, [*launch.reads, *launch.writes]))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        inputs = _tensors((args, kwargs))
        kwargs = kwargs or {}
        self._note_waits(func, name, inputs, args, kwargs)
        if name == "_local_scalar_dense":
            return _ANSWERS[inputs[0].dtype]
        result = func(*args, **kwargs)
        outputs = _tensors(result)
        changed = _tensors(args[0]) if func._schema.is_mutable else []
        kept = [] if name in _OVERWRITING else changed
        read = [*kept, *inputs[len(changed) :]]
        if self._in_kernel is not None:
            for storages, used in zip(self._in_kernel, (read, changed), strict=True):
                storages.update(map(_storage, used))
        elif func.namespace == "c10d":
            self.step.exchanged |= {x.dtype for x in inputs}
            self.step.floor_bytes += sum(map(bytes_of, inputs)) * (2 if "reduce" in name else 1)
            self.step.operations[f"c10d.{name}"] += 1
        elif _launches(func, name, inputs, outputs):
            self.step.operations[f"{func.namespace}.{name}"] += 1
            written = changed or outputs
            self.step.moved_bytes += sum(map(bytes_of, [*read, *written]))
        return result

    def _note_waits(
        self, func: Any, name: str, inputs: list[Tensor], args: Any, kwargs: dict[str, Any]
    ) -> None:
        device = kwargs.get("device")
        non_blocking = any(x is True for x in (*args, *kwargs.values()))
        if _makes_the_host_wait(name, inputs, device, non_blocking):
            place = _place(sys._getframe(2))
            self.step.host_reads.setdefault(place, f"{func.namespace}.{name}")
        uploads = name == "_to_copy" and device is not None and device.type == "cuda"
        uploads |= name == "copy_" and inputs[0].is_cuda
        # In a kernel it is a constant, which the compiler moves there once.
        if uploads and not inputs[-1].is_cuda and self._in_kernel is None:
            self.step.uploads.add(_place(sys._getframe(2)))


class _Answers(dict[torch.dtype, float]):
    """Made-up answers for the host: a value is 64, and a condition does not hold."""

    def __missing__(self, dtype: torch.dtype) -> float:
        return 64.0 if dtype.is_floating_point else 64


_ANSWERS = _Answers({torch.bool: False})


def _makes_the_host_wait(
    name: str, inputs: list[Tensor], device: torch.device | None, non_blocking: bool
) -> bool:
    if not any(x.is_cuda for x in inputs):
        return False  # a value on the CPU was copied there before
    if name == "_to_copy":
        return device is not None and device.type == "cpu"
    if name == "copy_":
        return not inputs[0].is_cuda and not non_blocking
    by_mask = name.startswith("index") and any(x.dtype == torch.bool for x in inputs[1:])
    return by_mask or name in _WAITS


def _launches(func: Any, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    if name in _LAUNCH_NOTHING or not any(x.is_cuda for x in [*inputs, *outputs]):
        return False
    storages = set(map(_storage, inputs))
    is_view = all(_storage(x) in storages for x in outputs)
    return func._schema.is_mutable or not is_view


def _storage(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def bytes_of(x: Tensor) -> int:
    """Return the bytes of a tensor's distinct elements; expanded dimensions count once."""
    pairs = zip(x.shape, x.stride(), strict=True)
    return math.prod(size for size, stride in pairs if stride) * x.element_size()


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
