"""A compressor as the communication hook of a DistributedDataParallel."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import is_
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gcbench.comm.collectives import Comm
from gcbench.comm.ddp import Arrived, WholeGradient
from gcbench.comm.nodes import node_size
from gcbench.comm.transport import MirrorTransport, transport_of
from gcbench.compressors import Compressor, Grads, parts_of
from gcbench.compressors.matrices import Shape, shapes_of_parameters
from gcbench.compressors.other_exchanges import Hierarchical
from gcbench.config import ConfigError
from gcbench.launch.checks import refuse_complex, refuse_sparse
from gcbench.library.agreement import blank
from gcbench.library.compression import Compression, Exchange
from gcbench.library.states import (
    name_without_wrappers,
    refuse_other_tensors,
    states_of,
)
from gcbench.train.finite import not_finite


class DdpCompression(Compression):
    """A compressor that sees the whole gradient of a DistributedDataParallel at once."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        compressor: Compressor,
        seed: int,
        error_every: int | None = None,
    ) -> None:
        # Not the DDP, of whose life its hook, and therefore this object, is a part.
        self._module, self._ignored = ddp.module, ddp.parameters_to_ignore
        self._parameters = parameters_of(ddp)
        self._shapes = shapes_of(ddp)
        self._knows_graph = ddp._has_rebuilt_buckets
        self._group = ddp.process_group
        device = next(iter(self._parameters)).device
        super().__init__(
            compressor,
            _comm_of(ddp, device),
            device,
            seed,
            {"gradient": Exchange(seed)},
            error_every,
            parameters={name: list(p.shape) for p, name in self._parameters.items()},
        )
        self._arrived: Arrived | None = None
        self._everyone: Sequence[nn.Parameter | None] = []  # with those that are not exchanged
        self._frozen: Sequence[nn.Parameter] = []
        self._places: dict[str, Tensor] = {}  # what holds gradients, then updates
        self._copied: list[str] = []  # whose gradients have another type or layout than rows
        self._hook = _free_hook_of(ddp, self._parameters)
        self._hook.on_gradients = self._exchange
        self._hook.on_forward = self._refuse_first_no_sync

    def remove(self) -> None:
        """Let the module average gradients as DDP does without a hook."""
        if self._hook.on_gradients == self._exchange:
            self._hook.on_gradients = self._hook.on_forward = None

    def _check(self, name: str, read: Exchange, saved: Mapping[str, Any]) -> Exchange:
        rows = zeros(self._shapes, self._device)
        refuse_other_tensors(self.compressor, rows, self._comm, read.state)
        return read

    def _refuse_first_no_sync(self, ddp: DistributedDataParallel) -> None:
        """Raise ConfigError where PyTorch would end in an internal assertion."""
        self._knows_graph |= ddp.require_backward_grad_sync
        if ddp.static_graph and not self._knows_graph:
            raise ConfigError(
                "static_graph=True: PyTorch learns the graph in the first backward pass, which "
                "must not be under no_sync(); type static_graph=False, or leave out no_sync() in "
                "the first step"
            )

    @torch.no_grad()
    def _exchange(self, arrived: Arrived, earlier: Sequence[Tensor] | None) -> None:
        """Replace this worker's new gradients by the update that all workers agree on."""
        everyone = [p for part in self._module.modules() for p in part._parameters.values()]
        if not (
            arrived is self._arrived
            and len(everyone) == len(self._everyone)
            and all(map(is_, everyone, self._everyone))
            and not any(p.requires_grad for p in self._frozen)
        ):
            self._prepare(arrived, everyone)
        copies = {
            name: self._places[name].float().contiguous().view(1, *self._shapes[name])
            for name in self._copied
        }
        exchange = self._exchanges["gradient"]
        out = self._aggregate(exchange, self._places | copies)
        buffers = [_as_row(x) for x in arrived.buffers]
        # Some methods code an overflow as they code any other value, such as signs, or do not send
        # it in this step, so that the update of all workers is finite even if a gradient is not.
        bad = not_finite([*buffers, *out.update.values()])
        # PyTorch copies all tensors at once only if none of them has another type or layout.
        for names in ([name for name in self._places if name not in copies], self._copied):
            if names:
                places = [self._places[name] for name in names]
                pairs = zip(names, places, strict=True)
                torch._foreach_copy_(places, [out.update[k].view(x.shape) for k, x in pairs])
        if any(x.dtype != torch.float32 for x in buffers):  # for which an update may be too large
            bad |= not_finite(buffers)
        # GradScaler sees only what is written here, and must find the overflow of any worker.
        blank(arrived.buffers, self._keep(exchange, out.state, bad, self._group, earlier))

    def _prepare(self, arrived: Arrived, everyone: Sequence[nn.Parameter | None]) -> None:
        """Find the places of gradients, which are the same until DDP has other buckets."""
        gradients = arrived.gradients
        trainable = {p for p in everyone if p is not None and p.requires_grad}
        if not trainable <= self._parameters.keys() <= gradients.keys():
            self._refuse_late_parameters(gradients)
        self._arrived, self._everyone = arrived, everyone
        self._frozen = [p for p in everyone if p is not None and not p.requires_grad]
        self._places = {name: gradients[p] for p, name in self._parameters.items()}
        self._copied = []
        for name, g in self._places.items():
            if g.dtype == torch.float32 and g.is_contiguous():
                self._places[name] = g.view(1, *self._shapes[name])
            else:
                self._copied.append(name)

    def _refuse_late_parameters(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Raise ConfigError for a parameter that began to take part too late for DDP or for us."""
        if not self._parameters.keys() & gradients:
            raise ConfigError(
                "comm_hook: this state was registered with two DDPs; type state, hook = "
                "gcbench.comm_hook(...) for each of them"
            )
        for p, name in (self._parameters | _trainable(self._module, self._ignored)).items():
            if p not in gradients:
                raise ConfigError(
                    f"{name}: DDP does not exchange this parameter, as it was added, or began to "
                    "require a gradient, after the DDP was made; type DistributedDataParallel("
                    "model) and compress again after that"
                )
            if p not in self._parameters:
                raise ConfigError(
                    f"{name}: this parameter began to require a gradient after compress was "
                    "called; type handle.remove(), and compress again after requires_grad_(True)"
                )


def refuse_ddp(ddp: DistributedDataParallel) -> None:
    """Raise ConfigError if a compressor cannot exchange the gradients of `ddp`."""
    refuse_sparse(ddp.module)
    refuse_complex({name: p for p, name in parameters_of(ddp).items()})
    if ddp.static_graph and len({p.dtype for p in parameters_of(ddp)}) > 1:
        raise ConfigError(
            "static_graph=True: in the first step, DDP has a bucket for each type of parameters "
            "and does not say which one is the last; type static_graph=False, or compress with a "
            "model whose parameters have one type"
        )
    if len({p.device for p in parameters_of(ddp)}) > 1:
        raise ConfigError(
            "the parameters are on several devices; type compress with a model on one device"
        )


def refuse_unused(ddp: DistributedDataParallel, compressor: Compressor) -> None:
    """Raise ConfigError if `compressor` has a memory, and parameters may be unused in a step."""
    if not ddp.find_unused_parameters:
        return
    group = ddp.process_group
    mirror = Comm(group.size(), MirrorTransport(group.rank(), group.size()))
    device = next(iter(parameters_of(ddp))).device
    states = states_of(compressor, zeros(shapes_of(ddp), device), mirror)
    if any(layer.shared or layer.per_worker for state in states for layer in state.layers()):
        raise ConfigError(
            "find_unused_parameters=True: DDP drops the update of a parameter that no worker used, "
            "and this compressor's memory would count it as applied; type "
            "find_unused_parameters=False (of Hugging Face's Trainer: TrainingArguments("
            "ddp_find_unused_parameters=False)), and requires_grad_(False) for parameters that are "
            "never used"
        )


def zeros(shapes: Mapping[str, Shape], device: torch.device) -> Grads:
    """Return zeros for the gradients of one worker."""
    return {name: torch.zeros(1, *shape, device=device) for name, shape in shapes.items()}


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
            node_size(part.workers_per_node, group, 1, _host_size_of(ddp.process_group))
        except ValueError as error:
            raise ConfigError(str(error)) from error


def parameters_of(ddp: DistributedDataParallel) -> dict[nn.Parameter, str]:
    """Return the names of the parameters that DDP exchanges, in the model's order."""
    return _trainable(ddp.module, ddp.parameters_to_ignore)


def shapes_of(ddp: DistributedDataParallel) -> dict[str, Shape]:
    """Return the shapes, by name, of the gradients that DDP exchanges, as compressors get them."""
    shapes = shapes_of_parameters(ddp.module)
    by_name = {name_without_wrappers(name): shape for name, shape in shapes.items()}
    return {name: by_name[name] for name in parameters_of(ddp).values()}


def _as_row(x: Tensor) -> Tensor:
    return x.view(1, -1)


def _trainable(module: nn.Module, ignored: Collection[str]) -> dict[nn.Parameter, str]:
    return {
        p: name_without_wrappers(name)
        for name, p in module.named_parameters()
        if p.requires_grad and name not in ignored
    }


def _comm_of(ddp: DistributedDataParallel, device: torch.device) -> Comm:
    """Return the collectives over the process group of `ddp`."""
    group = ddp.process_group
    return Comm(group.size(), transport_of(group, device), workers_per_host=_host_size_of(group))


def _host_size_of(group: dist.ProcessGroup) -> int | None:
    """Return how many workers of a group each host has; None if torchrun did not say."""
    on_host = os.environ.get("LOCAL_WORLD_SIZE")  # set by torchrun
    return workers_per_host(dist.get_process_group_ranks(group), int(on_host)) if on_host else None


def workers_per_host(ranks: Sequence[int], processes: int) -> int | None:
    """Return how many of a group's `ranks` are on each host, which has `processes` in all.

    None if hosts differ, as they can where DDP has a process group of its own.
    """
    sizes = set(Counter(rank // processes for rank in ranks).values())
    return sizes.pop() if len(sizes) == 1 else None


def _free_hook_of(
    ddp: DistributedDataParallel, parameters: Mapping[nn.Parameter, str]
) -> WholeGradient:
    try:
        hook = WholeGradient.of(ddp, parameters)
        free = hook.on_gradients is None
    except RuntimeError:  # It has a hook that is not ours.
        free = False
    if not free:
        raise ConfigError(
            "this DistributedDataParallel has a communication hook, and takes only one; type "
            "handle.remove() where it is a compressor's, or make it anew without register_comm_hook"
        )
    return hook
