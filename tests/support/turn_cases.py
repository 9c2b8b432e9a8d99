"""Models under fully_shard whose layers are used, or trained, in turn."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from fsdp_cases import mesh
from gloo_pool import Process
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import gcbench

LAYERS = "abc"


class Heads(nn.Module):
    """Layers of one parameter group, two of which have equal sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(16, 10), nn.Linear(16, 10)
        self.c = nn.Linear(16, 7, bias=False)

    def forward(self, inputs: Tensor, names: str) -> Tensor:
        return torch.cat([getattr(self, name)(inputs) for name in names], dim=1)


def train_in_turn(
    process: Process, between: bool, name: str, knobs: dict[str, Any], seed: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return by parameter the sums of updates, and of mean gradients of plain training.

    In some steps, layers are not used, and in others, frozen. Gradients of the last steps are 0, so
    that what a method holds back arrives. In between, the state moves to another handle.
    """
    draw = random.Random(seed)
    of_all = mesh(between)
    ours, plain = (Heads() for _ in range(2))
    fully_shard(ours, mesh=of_all["gpu"])
    fully_shard(plain, mesh=of_all)
    replicas = of_all["node"].get_group() if between else None
    compression = gcbench.compress(ours, name, replicas=replicas, **knobs)
    sums: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    for step in range(15):
        is_last = step >= 10
        names = LAYERS if is_last else "".join(draw.sample(LAYERS, draw.randint(1, 3)))
        frozen = "" if is_last else draw.choice(["", *LAYERS])
        frozen = "" if frozen == names else frozen
        inputs = torch.randn(
            8, 16, generator=torch.Generator().manual_seed(97 * step + process.rank)
        )
        for model, own in zip((ours, plain), sums, strict=True):
            model.zero_grad()
            for layer in LAYERS:
                getattr(model, layer).requires_grad_(layer != frozen)
            (model(inputs, names).square().sum() * (not is_last)).backward()
            for key, p in model.named_parameters():
                if p.grad is not None:
                    own[key] = own.get(key, 0) + p.grad.full_tensor()  # type: ignore[attr-defined]
        if step == 5:
            state = copy.deepcopy(compression.state_dict())
            compression.remove()
            compression = gcbench.compress(ours, name, replicas=replicas, **knobs)
            compression.load_state_dict(state)
    return sums
