"""Optimizers, which apply the aggregated update.

Weight decay joins after aggregation, with none on batch normalization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gcbench.settings import OptimizerKind, OptimizerSettings


class PowerSGDMomentum(torch.optim.Optimizer):
    """Momentum after aggregation as in Vogels et al. 2019, algorithm 2:

        m <- momentum m + d;   x <- x - lr (d + m)

    Not torch's Nesterov: with momentum 0 the step is 2 lr d, with 0.9 a constant d is amplified 11
    times, not 10.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params: list[Tensor] = group["params"]
            ds: list[Tensor] = [p.grad for p in params if p.grad is not None]
            assert len(ds) == len(params), "every parameter gets an update"
            if group["weight_decay"]:
                ds = list(torch._foreach_add(ds, params, alpha=group["weight_decay"]))
            ms = [self._momentum(p) for p in params]
            torch._foreach_mul_(ms, group["momentum"])
            torch._foreach_add_(ms, ds)
            torch._foreach_add_(params, torch._foreach_add(ds, ms), alpha=-group["lr"])

    def _momentum(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    undecayed = {id(p) for m in norms for p in m.parameters()}
    params = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {
            "params": [p for p in params if id(p) not in undecayed],
            "weight_decay": settings.weight_decay,
        },
        {
            "params": [p for p in params if id(p) in undecayed],
            "weight_decay": 0.0,
            "lr_scale": settings.norm_lr_scale,
        },
    ]
    groups = [g for g in groups if g["params"]]
    if settings.kind is OptimizerKind.powersgd:
        return PowerSGDMomentum(groups, lr=settings.lr, momentum=settings.momentum)
    return torch.optim.SGD(
        groups, lr=settings.lr, momentum=settings.momentum, nesterov=settings.nesterov, foreach=True
    )
