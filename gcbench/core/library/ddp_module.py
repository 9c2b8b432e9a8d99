"""The gradients that a DistributedDataParallel exchanges, and what of it a compressor refuses."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gcbench.core.comm.ddp import DdpHook
from gcbench.core.comm.groups import workers_per_host
from gcbench.core.comm.nodes import node_size
from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.exchange.gather import ScatterExchange
from gcbench.core.exchange.hierarchical import Hierarchical
from gcbench.core.methods.matrices import Shape, shapes_of_parameters
from gcbench.core.parameters import name_without_wrappers, refuse_complex, refuse_sparse
from gcbench.core.wrappers.virtual import parts_of


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
