"""What happens in a step of a user's DDP or FSDP2 module, and when."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from gcbench.core.comm.fsdp import FlatGradient, param_group_of
from gcbench.core.compressor import Grads
from gcbench.core.errors import ConfigError
from gcbench.core.library.ddp import parameters_of
from gcbench.core.library.fsdp import group_of_shards, groups_of

WARM = 2  # first steps, in which DDP makes its buckets and caches fill
LEAST = 5  # steps from which something can be said
FIRST_COPY = 3  # the step of which gradients are copied; then every step of twice that number

Instant = Any  # seconds, or an event of a GPU's stream


class Clock:
    """The time of a device: of its stream on a GPU, on which the processor runs ahead."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Instant:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Instant, end: Instant) -> float:
        if not self._on_gpu:
            return float(end - begin)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


@dataclass
class Step:
    """The instants of a step: when it begins, when gradients are ready, when all are exchanged."""

    begin: Instant
    ready: dict[str, Instant] = field(default_factory=dict)  # in this order; the first is that of
    # the last layer, about when the backward pass begins
    end: Instant | None = None
    copies: bool = False  # whether gradients were copied in it, which takes time


class Times(NamedTuple):
    """The seconds of a step, as the median of those that were watched."""

    step: float
    exposed: float  # from the last gradient to the end of its exchange
    ready: Mapping[str, float]  # from the first gradient's arrival to that of each
    steps: int


class Watch(Protocol):
    """The watch of a module's steps; `remove` leaves the module as it was."""

    group: dist.ProcessGroup
    device: torch.device
    bucket_bytes: int  # that are exchanged together

    def remove(self) -> None: ...

    @property
    def gradients(self) -> Sequence[Grads]:
        """Return this worker's own gradients of some steps, `[1, ...]` each."""


class _Steps:
    """The steps of a module, between forward passes that a synchronizing backward pass follows."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.device = device
        self.steps: list[Step] = []
        self.copied: dict[int, dict[str, Tensor]] = {}
        self._clock = Clock(device)
        self._begins = True
        self._ends = False
        self._handles: list[RemovableHandle] = [module.register_forward_pre_hook(self._forward)]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _forward(self, _module: nn.Module, _inputs: Any) -> None:
        if torch.is_grad_enabled() and self._begins:
            number = len(self.steps)
            copies = number >= FIRST_COPY and _is_doubled(number)
            self.steps.append(Step(self._clock.now(), copies=copies))
            self._begins = False

    def arrive(self, name: str) -> None:
        """Note that a gradient is complete on this worker, and is about to be exchanged."""
        if not self.steps:
            return
        if not self._ends:
            # Callbacks run in their order when a backward pass ends. That of DDP, or of FSDP, which
            # waits for exchanges, is queued later than this one, and before the one that it queues.
            Variable._execution_engine.queue_callback(self._before_waiting)
            self._ends = True
        self.steps[-1].ready[name] = self._clock.now()

    def _before_waiting(self) -> None:
        Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._ends, self._begins = False, True
        self.steps[-1].end = self._clock.now()

    def copy(self, name: str, gradient: Tensor) -> None:
        """Keep a gradient of the steps that are copied: the first such one, and the last."""
        if not self.steps or not self.steps[-1].copies:
            return
        number = len(self.steps) - 1
        for old in [n for n in self.copied if FIRST_COPY < n < number]:
            del self.copied[old]
        self.copied.setdefault(number, {})[name] = gradient.detach().float().clone()

    def times(self, until: Instant) -> Times:
        """Return the times of steps that are over, of which the first ones do not count."""
        seconds = self._clock.seconds
        ends = [*(step.begin for step in self.steps[1:]), until]
        whole = [
            (step, end)
            for i, (step, end) in enumerate(zip(self.steps, ends, strict=True))
            if step.end is not None and not step.copies and i >= WARM
        ]
        if len(whole) < LEAST - WARM - 1:
            raise ConfigError(
                f"the loop took {len(self.steps)} steps, too few to say anything; profile at least "
                f"{LEAST}, or better 20"
            )
        names = [*whole[-1][0].ready]
        first = names[0]
        ready = {
            name: median(
                seconds(step.ready[first], step.ready[name])
                for step, _ in whole
                if name in step.ready and first in step.ready
            )
            for name in names
        }
        exposed = [seconds([*step.ready.values()][-1], step.end) for step, _ in whole]
        return Times(
            median(seconds(step.begin, end) for step, end in whole),
            median(exposed),
            ready,
            len(self.steps),
        )

    @property
    def now(self) -> Instant:
        return self._clock.now()

    @property
    def gradients(self) -> Sequence[Grads]:
        return [
            {name: g.unsqueeze(0) for name, g in sorted(copied.items())}
            for _, copied in sorted(self.copied.items())
        ]


def _is_doubled(number: int) -> bool:
    """Return whether a number is FIRST_COPY times a power of two."""
    times, rest = divmod(number, FIRST_COPY)
    return rest == 0 and times & (times - 1) == 0


class DdpWatch(_Steps):
    """The watch of a DistributedDataParallel."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        names = parameters_of(ddp)
        super().__init__(ddp, next(iter(names)).device)
        self.group = ddp.process_group
        self.bucket_bytes = ddp.bucket_bytes_cap
        self._ddp = ddp
        self._names = names
        for p in names:
            if p.requires_grad:
                self._handles.append(p.register_hook(self._copier(p)))
                self._handles.append(p.register_post_accumulate_grad_hook(self._ready))

    def _ready(self, p: Tensor) -> None:
        if self._ddp.require_backward_grad_sync:
            assert isinstance(p, nn.Parameter)
            self.arrive(self._names[p])

    def _copier(self, p: nn.Parameter) -> Any:
        """Return a hook that copies what is about to be added up for a parameter."""

        def copy(gradient: Tensor) -> None:
            if self._ddp.require_backward_grad_sync and self.steps and self.steps[-1].copies:
                earlier = p.grad  # of micro-batches under no_sync()
                self.copy(self._names[p], gradient if earlier is None else earlier + gradient)

        return copy


class FsdpWatch(_Steps):
    """The watch of an FSDP2 module, whose parameter groups are each reduced as one flat tensor."""

    def __init__(self, module: FSDPModule) -> None:
        assert isinstance(module, nn.Module)
        self._before: list[tuple[Any, Any]] = []
        super().__init__(module, next(module.parameters()).device)
        self.group = group_of_shards(module)
        self.bucket_bytes = 0  # a group is a bucket
        for name, part in groups_of(module).items():
            reduces = param_group_of(part)
            self._before.append((reduces, reduces._reduce_scatter_comm))
            reduces._reduce_scatter_comm = _Seen(
                self, name or "model", reduces._reduce_scatter_comm
            )

    def remove(self) -> None:
        super().remove()
        for group, comm in self._before:
            group._reduce_scatter_comm = comm
        self._before = []


class _Seen:
    """A reduce-scatter that notes what it gets and does what the one that it replaces does."""

    def __init__(self, watch: FsdpWatch, name: str, inner: Any) -> None:
        if isinstance(inner, FlatGradient) and inner.hook is not None:
            raise ConfigError(
                "gcbench.profile: this module has a compressor; type handle.remove() first"
            )
        self._watch, self._name, self._inner = watch, name, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *args: Any, **kw: Any) -> Any:
        self._watch.arrive(self._name)
        self._watch.copy(self._name, input_tensor)
        return self._inner(output_tensor, input_tensor, *args, **kw)
