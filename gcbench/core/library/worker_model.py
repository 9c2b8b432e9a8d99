"""The model of a worker that trains alone between exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gcbench.core.errors import ConfigError
from gcbench.core.parameters import name_without_wrappers, refuse_complex


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by their names in the user's model."""
    return {
        name_without_wrappers(name): p for name, p in model.named_parameters() if p.requires_grad
    }


@torch.no_grad()
def take_from_first(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Give the model the parameters and buffers of worker 0."""
    for x in (*model.parameters(), *model.buffers()):
        message = x.detach().contiguous()
        dist.broadcast(message, group=group, group_src=0)
        x.copy_(message)


def optimizers_of(model: nn.Module, given: Optimizer | Sequence[Optimizer]) -> Sequence[Optimizer]:
    """Return the optimizers that step the model. Raises ConfigError for no local steps."""
    if isinstance(model, (DistributedDataParallel, FSDPModule)):
        raise ConfigError(
            f"{type(model).__name__} averages gradients in every step; type local_steps(model, "
            "optimizer, ...) with a model that is not wrapped"
        )
    optimizers: list[Any] = [*given] if isinstance(given, (list, tuple)) and given else [given]
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                f"{type(optimizer).__name__} is not a torch.optim.Optimizer; type the one that "
                "steps the model, as in local_steps(model, optimizer), or a list of all that do"
            )
    refuse_complex(dict(model.named_parameters()))
    stepped = {p for one in optimizers for group in one.param_groups for p in group["params"]}
    trained = trained_parameters(model)
    if stepped.isdisjoint(trained.values()):
        raise ConfigError(
            "the optimizer has none of this model's parameters; type local_steps(model, optimizer) "
            "with the optimizer that was made from model.parameters()"
        )
    if left := [name for name, p in trained.items() if p not in stepped]:
        raise ConfigError(
            f"{left[0]}: no given optimizer steps this parameter; type "
            "local_steps(model, [optimizer, other]) with all that step the model, or "
            "requires_grad_(False) if none does"
        )
    if not dist.is_initialized():
        raise ConfigError(
            "there is no process group; type local_steps inside of gcbench.join(), or after "
            "init_process_group"
        )
    return optimizers
