"""A compressor as the communication hook of a DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from operator import is_
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gcbench.core.comm.ddp import Arrived, DdpHook
from gcbench.core.comm.nodes import node_size
from gcbench.core.comm.transport import workers_per_host
from gcbench.core.compressor import Compressor, State, offsets_of
from gcbench.core.errors import ConfigError
from gcbench.core.exchange.gather import ScatterExchange
from gcbench.core.exchange.hierarchical import Hierarchical
from gcbench.core.library.compression import Compression, Typed
from gcbench.core.library.exchange import Bucket, Kept, type_of_means
from gcbench.core.library.overlap import decide_overlap
from gcbench.core.library.states import not_a_state
from gcbench.core.parameters import (
    Shape,
    name_without_wrappers,
    refuse_complex,
    refuse_sparse,
    shapes_of_parameters,
)
from gcbench.core.wrappers.virtual import parts_of


class Taken(NamedTuple):
    """The gradients that the hook passed on, and their exchanges: each gives a state and a flag."""

    arrived: Arrived
    parts: Sequence[Bucket]
    exchanges: list[Future[tuple[State, Tensor]]]


class DdpCompression(Compression):
    """A compressor that sees the whole gradient of a DistributedDataParallel, or its buckets."""

    def __init__(self, ddp: DistributedDataParallel, typed: Typed) -> None:
        # Not the DDP, of whose life its hook, and therefore this object, is a part.
        self._module, self._ignored = ddp.module, ddp.parameters_to_ignore
        self._parameters = parameters_of(ddp)
        self._shapes = shapes_of(ddp, self._parameters)
        offsets = offsets_of({name: p.numel() for p, name in self._parameters.items()})
        self._knows_graph = ddp._has_rebuilt_buckets
        device = next(iter(self._parameters)).device
        super().__init__(
            typed,
            ddp.process_group,
            device,
            {"gradient": Kept(typed.seed, offsets, self._shapes)},
            parameters={name: list(p.shape) for p, name in self._parameters.items()},
        )
        self.by_bucket = typed.overlap is not False and decide_overlap(
            typed.overlap, typed.method, device, self._gather
        )
        # Of what is exchanged as DDP would without a hook, beside the backward pass.
        self._mean_type = type_of_means(typed.method) if typed.error_every is None else None
        if self._mean_type:
            self.by_bucket = True
        elif self.by_bucket:
            self._exchange.take_own_group()
        self._known: dict[int, Taken] = {}  # of the last pass, by the identity of what arrived
        self._buckets: list[list[str]] = []  # names that were exchanged together in the last pass
        self._split: list[list[str]] | None = None  # of a saved state, for DDP's single first one
        self._everyone: Sequence[nn.Parameter | None] = []  # with those that are not exchanged
        self._frozen: Sequence[nn.Parameter] = []
        self._hook = free_hook_of(ddp)
        self._hook.watch(self._parameters)
        self._hook.receiver = self

    def remove(self) -> None:
        """Let the module average gradients as DDP does without a hook."""
        if self._hook.receiver is self:
            self._hook.receiver = None
            self._exchange.close()

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "buckets": self._buckets}

    def _check(self, name: str, read: Kept, saved: Mapping[str, Any]) -> Kept:
        self._refuse_other_states(self._shapes, [read.state])
        return read

    def _read(self, saved: Mapping[str, Any]) -> Mapping[str, Kept]:
        read, buckets = super()._read(saved), saved.get("buckets")
        whole = isinstance(buckets, list) and all(isinstance(names, list) for names in buckets)
        names = [str(name) for names in buckets for name in names] if whole and buckets else []
        if not whole or (names and sorted(names) != sorted(self._shapes)):
            raise not_a_state("no buckets" if buckets is None else f"buckets={buckets!r:.60}")
        return read

    def _replace(self, kept: Mapping[str, Kept], saved: Mapping[str, Any]) -> None:
        super()._replace(kept, saved)
        self._split = saved["buckets"] or None

    def begin_forward(self, ddp: DistributedDataParallel) -> None:
        """Raise ConfigError where PyTorch would end in an internal assertion."""
        if not ddp._has_rebuilt_buckets:  # DDP is about to, and frees the old ones before
            self._known = {}
        self._knows_graph |= ddp.require_backward_grad_sync
        if ddp.static_graph and not self._knows_graph:
            raise ConfigError(
                "static_graph=True: PyTorch learns the graph in the first backward pass, which "
                "must not be under no_sync(); type static_graph=False, or leave out no_sync() in "
                "the first step"
            )

    def take(self, arrived: Arrived) -> Taken:
        """Begin to replace this worker's gradients by the update that all workers agree on."""
        taken = Taken(arrived, self._parts_of(arrived), [])
        for part in taken.parts:
            if self._mean_type and all(x.dtype == torch.float32 for x in part.buffers):
                buffers = [x.view(-1) for x in part.buffers]
                flat = buffers if len(taken.parts) == 1 else [*part.places.values()]
                exchange: Future[Any] = self._exchange.begin_mean(flat, self._mean_type)
            else:
                replace = partial(self._exchange.replace, self._kept["gradient"], part)
                exchange = self._exchange.submit(replace)
            taken.exchanges.append(exchange)
        return taken

    def finish(
        self,
        taken: Sequence[Taken],
        earlier: Sequence[Tensor] | None,
        used: Collection[nn.Parameter] | None,
    ) -> None:
        """Wait for all exchanges of a backward pass, and keep the new state."""
        self._refuse_late_parameters(taken)
        if earlier:
            self._warn_of_sum("no_sync()")
        replaced = [self._exchange.result(part) for one in taken for part in one.exchanges]
        end = partial(self._end, taken, replaced, earlier, used)
        self._exchange.result(self._exchange.submit(end))
        kept = self._kept["gradient"]
        kept.exchanges += 1
        self._count(kept, sum(x.numel() for one in taken for x in one.arrived.gradients.values()))
        known = () if self._split else taken
        self._known = {id(one.arrived): one._replace(exchanges=[]) for one in known}
        self._buckets = [[*part.places] for one in taken for part in one.parts]
        self._split = None

    def _end(
        self,
        taken: Sequence[Taken],
        replaced: Sequence[tuple[State, Tensor]],
        earlier: Sequence[Tensor] | None,
        used: Collection[nn.Parameter] | None,
    ) -> None:
        kept, used_by_name = self._kept["gradient"], None
        keeps = any(layer.shared or layer.per_worker for x, _ in replaced for layer in x.layers())
        if used is not None and keeps:
            used_by_name = {name: p in used for p, name in self._parameters.items()}
        buffers = [buffer for one in taken for buffer in one.arrived.buffers]
        unused = self._exchange.keep(kept, self._shapes, replaced, buffers, earlier, used_by_name)
        for part in (part for one in taken for part in one.parts):
            for name in part.places.keys() & unused:
                part.places[name].zero_()  # p.grad may be a view of it

    def _parts_of(self, arrived: Arrived) -> Sequence[Bucket]:
        """Return the places of gradients, which are the same until DDP has other buckets."""
        if self._split is None and id(arrived) in self._known:
            return self._known[id(arrived)].parts
        gradients = arrived.gradients
        places = {name: gradients[p] for p, name in self._parameters.items() if p in gradients}
        if not places:
            raise ConfigError(
                "comm_hook: this state was registered with two DDPs; type state, hook = "
                "gcbench.comm_hook(...) for each of them"
            )
        # A run that continues sends the same messages as if it had not been stopped.
        split = self._split if self.by_bucket and len(places) == len(self._shapes) else None
        rows = [x.view(1, -1) for x in arrived.buffers]
        return [
            self._make_part({name: places[name] for name in names}, rows)
            for names in split or [[*places]]
        ]

    def _make_part(self, places: dict[str, Tensor], rows: list[Tensor]) -> Bucket:
        copied = []
        for name, g in places.items():
            if g.dtype == torch.float32 and g.is_contiguous():
                places[name] = g.view(1, *self._shapes[name])
            else:
                copied.append(name)
        return Bucket(places, copied, rows)

    def _refuse_late_parameters(self, taken: Sequence[Taken]) -> None:
        """Raise ConfigError for a parameter that began to take part too late for DDP."""
        everyone = [p for part in self._module.modules() for p in part._parameters.values()]
        if (
            all(id(one.arrived) in self._known for one in taken)
            and len(everyone) == len(self._everyone)
            and all(map(is_, everyone, self._everyone))
            and not any(p.requires_grad for p in self._frozen)
        ):
            return
        exchanged = {p for one in taken for p in one.arrived.gradients}
        for name, p in self._module.named_parameters():
            if p.requires_grad and name not in self._ignored and p not in exchanged:
                raise ConfigError(
                    f"{name_without_wrappers(name)}: DDP does not exchange this parameter, as it "
                    "was added, or began to require a gradient, after the DDP was made; type "
                    "DistributedDataParallel(model) and compress again after that"
                )
        self._everyone = everyone
        self._frozen = [p for p in everyone if p is not None and not p.requires_grad]


def refuse_ddp(ddp: DistributedDataParallel) -> None:
    """Raise ConfigError if a compressor cannot exchange the gradients of `ddp`."""
    refuse_sparse(ddp.module)
    parameters = parameters_of(ddp)
    refuse_complex({name: p for p, name in parameters.items()})
    if getattr(ddp, "skip_all_reduce_unused_params", False):
        raise ConfigError(
            "skip_all_reduce_unused_params=True: DDP leaves out buckets, also the last one, which "
            "ends an exchange; type skip_all_reduce_unused_params=False"
        )
    if ddp.static_graph and len({p.dtype for p in parameters}) > 1:
        raise ConfigError(
            "static_graph=True: in the first step, DDP has a bucket for each type of parameters "
            "and does not say which one is the last; type static_graph=False, or compress with a "
            "model whose parameters have one type"
        )
    if len({p.device for p in parameters}) > 1:
        raise ConfigError(
            "the parameters are on several devices; type compress with a model on one device"
        )


def refuse_unused(ddp: DistributedDataParallel, compressor: Compressor) -> None:
    """Raise ConfigError if `compressor` keeps a residual whose values have no parameter."""
    of_shards = [p for p in parts_of(compressor) if isinstance(p, ScatterExchange) and p.code_means]
    if ddp.find_unused_parameters and of_shards:
        raise ConfigError(
            "exchange=scatter_coded: DDP drops updates of unused parameters, which a residual of "
            "shards cannot take back; type exchange=scatter, or find_unused_parameters=False"
        )


def refuse_nodes(ddp: DistributedDataParallel, compressor: Compressor) -> None:
    """Raise ConfigError for nodes that do not divide the workers, or of a part of all processes.

    PyTorch makes a process group only with the help of all processes, and would hang.
    """
    group = ddp.process_group.size()
    nodes = [part for part in parts_of(compressor) if isinstance(part, Hierarchical)]
    if nodes and group < dist.get_world_size():
        raise ConfigError(
            f"exchange=hierarchical: process_group has {group} of {dist.get_world_size()} "
            "processes, and nodes need all of them; type exchange=gather"
        )
    for part in nodes:
        try:
            node_size(part.workers_per_node, group, 1, workers_per_host(ddp.process_group))
        except ValueError as error:
            raise ConfigError(str(error)) from error


def parameters_of(ddp: DistributedDataParallel) -> dict[nn.Parameter, str]:
    """Return the names of the parameters that DDP exchanges, in the model's order.

    Frozen ones are among them if they were trained when the DDP was made: it exchanges them still.
    """
    named = [(n, p) for n, p in ddp.module.named_parameters() if n not in ddp.parameters_to_ignore]
    exchanged = {p for _, p in named if p.requires_grad}
    if len(exchanged) < len(named):
        buckets = ddp.reducer._get_zeros_like_grad_buckets()
        exchanged |= {p for bucket in buckets for p in bucket.parameters()}
    return {p: name_without_wrappers(name) for name, p in named if p in exchanged}


def shapes_of(
    ddp: DistributedDataParallel, parameters: Mapping[nn.Parameter, str]
) -> dict[str, Shape]:
    """Return the shapes, by name, of the gradients of `parameters`, as compressors get them."""
    shapes = shapes_of_parameters(ddp.module, frozen=True)
    by_name = {name_without_wrappers(name): shape for name, shape in shapes.items()}
    return {name: by_name[name] for name in parameters.values()}


def free_hook_of(ddp: DistributedDataParallel) -> DdpHook:
    """Return the hook of `ddp`. Raises ConfigError if something else uses it."""
    try:
        hook = DdpHook.of(ddp)
        free = hook.receiver is None
    except RuntimeError:  # It has a hook that is not ours.
        free = False
    if not free:
        raise ConfigError(
            "this DistributedDataParallel has a communication hook, and takes only one; type "
            "handle.remove() where it is a compressor's, or make it anew without register_comm_hook"
        )
    return hook
