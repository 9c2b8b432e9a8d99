"""A user's own optimizers and schedules, right and wrong, to be named on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


class Decaying(torch.optim.Optimizer):
    """Moves by lr m / t in step t, with m a running mean; its state has numbers and tensors."""

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.5) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "betas": (momentum, 0.9)})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                state["mean"] = state.get("mean", torch.zeros_like(p)).lerp(
                    p.grad, 1 - group["momentum"]
                )
                p -= group["lr"] / state["count"] * state["mean"]


class NeedsClosure(Decaying):
    def step(self, closure: Callable[[], float]) -> None:  # type: ignore[override]
        closure()


class NoOptimizer:
    def __init__(self, params: Iterable[Any], lr: float) -> None:
        pass


def halving(optimizer: torch.optim.Optimizer, every: int = 1) -> LRScheduler:
    return LambdaLR(optimizer, lambda count: 0.5 ** (count // every))
