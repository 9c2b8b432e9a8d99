"""Loops of users whose models do not use all parameters in each step, under DDP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from accumulation_cases import Branches
from gloo_pool import Process
from library_cases import batch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gcbench

BRANCHES = [(0, 0), (0, 1), (1, 1), (1, 0), (1, 1), (0, 0)]  # that two workers use in a step
# Error feedback with alpha = beta = 1: what was not applied is in the residual.
KEEPS_ALL: dict[str, dict[str, Any]] = {
    "powersgd": {"rank": 1, "min_ratio": 0, "min_size": 0},
    "top_k": {"min_size": 0},
    "onebit": {"min_size": 0},
}
WAYS: list[dict[str, Any]] = [
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True, "kept": True},
    {"static_graph": True},
]
Tensors = dict[str, Tensor]


class LeftOut(NamedTuple):
    """What DDP applied in all steps and what the residual holds, beside gradients, by parameter."""

    applied: Tensors
    residual: Tensors
    gradients: Tensors  # sums of this worker's
    wrong: list[str]  # states that changed, and gradients that were touched, where none was used


def leave_out(
    process: Process, choices: Mapping[str, Mapping[str, Any]], ways: Mapping[str, Any]
) -> dict[str, LeftOut]:
    """Return what becomes of gradients of branches that workers use in turn."""
    return {name: _leave_out(process.rank, name, knobs, ways) for name, knobs in choices.items()}


def _leave_out(rank: int, name: str, knobs: Mapping[str, Any], ways: Mapping[str, Any]) -> LeftOut:
    kept = ways.get("kept", False)
    settings = {key: value for key, value in ways.items() if key != "kept"}
    twin = Branches()
    ddp = DistributedDataParallel(Branches(), bucket_cap_mb=0.0001, **settings)
    compression = gcbench.compress(ddp, name, **knobs)
    zero = {n: torch.zeros_like(p) for n, p in twin.named_parameters()}
    applied, gradients, wrong = dict(zero), dict(zero), []
    static = settings.get("static_graph", False)
    for step, pair in enumerate(BRANCHES):
        pair = (1, 1) if static else pair
        ddp.zero_grad(set_to_none=not kept)
        twin.zero_grad()
        before = _state(compression)
        inputs, targets = batch(rank, step)
        for model in (ddp, twin):
            cross_entropy(model(inputs, pair[rank]), targets).backward()
        after = _state(compression)
        for n, p in ddp.module.named_parameters():
            gradients[n] = gradients[n] + _gradient(dict(twin.named_parameters())[n])
            applied[n] = applied[n] + _gradient(p)
            if n.startswith("layers") and int(n.split(".")[1]) not in pair:
                touched = p.grad is not None and (not kept or p.grad.any())
                changed = not all(
                    torch.equal(x, after[key]) for key, x in before.items() if key[-1] == n
                )
                wrong += [f"{n} in step {step}"] * bool(touched or changed)
    residuals = compression._kept["gradient"].state.per_worker
    return LeftOut(applied, {n: x[0] for n, x in residuals.items()}, gradients, wrong)


def _gradient(p: nn.Parameter) -> Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad.clone()


def _state(compression: gcbench.Compression) -> dict[tuple[int, int, str], Tensor]:
    layers = compression._kept["gradient"].state.layers()
    return {
        (i, j, name): x.clone()
        for i, layer in enumerate(layers)
        for j, part in enumerate((layer.shared, layer.per_worker))
        for name, x in part.items()
    }
