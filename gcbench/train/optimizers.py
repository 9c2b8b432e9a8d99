"""The optimizer's side of a step: d, the aggregated update, is the gradient that it is handed.

For any optimizer f with state s, `p.grad` of worker i's micro-batches is g_i, and

    d_t = Aggregate(g_1 + alpha e_1, ..., g_W + alpha e_W);   e_i <- beta e_i + g_i - sent_i
    x_{t+1}, s_{t+1} = f(x_t, s_t, d_t; lr_t)

Codes, residuals e_i and clipping have the unit of the gradient: the rate enters after aggregation,
so that a residual of one step is applied at the rate of a later one. (Karimireddy et al. 2019 keep
lr e_i instead, which is the same at a constant rate.) Weight decay joins after aggregation too, and
is neither compressed nor fed back; batch normalization has none.

Error feedback rests on the sum of all d being that of all g but for the last residual. SGD with
momentum applies that sum, being linear in d; Adam does not:

    m <- b1 m + (1 - b1) d;   v <- b2 v + (1 - b2) d^2;   x <- x - lr m' / (sqrt(v') + eps)

where m', v' are without the bias of their start. v is that of the decompressed gradients: an
unbiased code adds its variance to v, which shortens steps; a value that is sent every k-th step, as
the sum of k gradients, adds k^2 g^2 every k steps, so that its steps are sqrt(k) times shorter than
without compression. A constant factor of all d, such as a code's bias toward zero, changes nothing
beyond eps. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
Convergence Speed", ICML 2021, say why error compensation fails with Adam, which is not linear in
the gradient, and compress the momentum instead, with v frozen after a warm-up: `FrozenAdam`. With
Adam and AdamW v goes on moving after `dense_steps` without compression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class PowerSGDMomentum(torch.optim.Optimizer):
    """Momentum after aggregation as in Vogels et al. 2019, algorithm 2:

        m <- momentum m + d;   x <- x - lr (d + m)

    Not torch's Nesterov: with momentum 0 the step is 2 lr d, with 0.9 a constant d is amplified 11
    times, not 10.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        if nesterov:
            raise ValueError(
                "optimizer.nesterov=true: PowerSGD's step of d + m looks ahead by itself; type "
                "optimizer.nesterov=false, or optimizer=sgd"
            )
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


class FrozenAdam(torch.optim.Optimizer):
    """AdamW whose variance stands still after `freeze_steps` steps T, as in Tang et al. 2021:

        m <- b1 m + (1 - b1) d;   v <- b2 v + (1 - b2) d^2 in steps of the first T
        x <- x - lr (m' / (sqrt(v') + eps) + weight_decay x)

    m' and v' are without the bias of their start. Up to T steps this is `torch.optim.AdamW`, and
    momentum with a rate for each value after them, linear in d. A value without any gradient until
    then, whose v is 0, does not move: a code's errors, divided by eps, would throw it far off.
    (DeepSpeed's 1-bit Adam has a mask to be typed for such values.)

    With `updates_per_interval` kappa the variance is frozen adaptively, as in Lu et al. 2022: it
    moves in the steps k_0 = 0, k_{j+1} = k_j + 2^floor(j / kappa) below T only, so that an interval
    doubles after kappa updates. Without, it moves in all of them.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: Sequence[float],
        eps: float,
        weight_decay: float,
        freeze_steps: int,
        updates_per_interval: int | None = None,
    ) -> None:
        defaults = {"betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        frozen = {"freeze_steps": freeze_steps, "updates_per_interval": updates_per_interval}
        super().__init__(params, {"lr": lr, **frozen, **defaults})

    @property
    def freeze_steps(self) -> int:
        """Return the steps after which no variance moves."""
        return max(group["freeze_steps"] for group in self.param_groups)

    def updates_variance(self, step: int) -> bool:
        """Return whether a variance moves in this step, counted from 0."""
        return any(_updates_variance(group, step) for group in self.param_groups)

    def roots(self) -> dict[Tensor, Tensor]:
        """Return by parameter the divisor of its steps: sqrt(v') + eps, or inf where v is 0."""
        return {
            p: _root(group, self.state[p]) for group in self.param_groups for p in group["params"]
        }

    def step_sizes(self) -> list[float]:
        """Return by group what m / (sqrt(v') + eps) was multiplied by in the last step."""
        return [
            group["lr"] / (1 - group["betas"][0] ** self.state[group["params"][0]]["step"])
            for group in self.param_groups
        ]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                    state["variance_step"] = 0
                m = state["exp_avg"].lerp_(p.grad, 1 - b1)
                if _updates_variance(group, state["step"]):
                    state["exp_avg_sq"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                    state["variance_step"] += 1
                state["step"] += 1
                p.mul_(1 - group["lr"] * group["weight_decay"])
                size = group["lr"] / (1 - b1 ** state["step"])
                p.addcdiv_(m, _root(group, state), value=-size)


def _updates_variance(group: Mapping[str, Any], step: int) -> bool:
    """Return whether `FrozenAdam` moves the variance in this step, counted from 0."""
    if step >= group["freeze_steps"]:
        return False
    updates: int | None = group["updates_per_interval"]
    if updates is None:
        return True
    # The interval 2^b begins at step kappa (2^b - 1), and lasts for kappa updates.
    interval = 1 << (step // updates + 1).bit_length() - 1
    return (step - updates * (interval - 1)) % interval == 0


def _root(group: Mapping[str, Any], state: Mapping[str, Any]) -> Tensor:
    """Return sqrt(v') + eps of a parameter's state, or inf where v is 0."""
    v: Tensor = state["exp_avg_sq"]
    unbias = 1 - group["betas"][1] ** state["variance_step"]
    return (v / unbias).sqrt_().add_(group["eps"]).masked_fill_(v == 0, torch.inf)


class DionOptimizer(torch.optim.Optimizer):
    """The optimizer of Dion, which hands on directions for matrices and gradients for vectors.

    Ahn et al., "Dion: Distributed Orthonormalized Updates", 2025 (arXiv 2504.05295), with Lion
    (Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023) for what is no
    matrix, at the same rate.

    Tensors of two and more dimensions, and then the others:

        x <- (1 - lr weight_decay) x - lr d
        x <- (1 - lr weight_decay) x - lr sign(b1 m + (1 - b1) d);   m <- b2 m + (1 - b2) d
    """

    def __init__(
        self, params: Iterable[Any], lr: float, betas: Sequence[float], weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
                if p.dim() >= 2:
                    p.sub_(p.grad, alpha=group["lr"])
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.sub_(torch.lerp(p.grad, m, b1).sign_(), alpha=group["lr"])
                m.lerp_(p.grad, 1 - b2)


def options_by_group(optimizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the options of `optimizer.*`, and with them those of each of its groups."""
    return [dict(optimizer), *({**optimizer, **group} for group in optimizer.get("groups", []))]


def _compile(match: str) -> re.Pattern[str]:
    try:
        return re.compile(match)
    except re.error as error:
        raise ValueError(
            f"optimizer.groups: match={match} is no regular expression ({error}); type a part of "
            "parameters' names, as in match=bias"
        ) from error


def parameter_groups(
    model: nn.Module, lr: float, groups: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the parameters of a model in groups, as any optimizer of torch takes them.

    A parameter has the options of the first of `groups` whose regular expression `match` is found
    in its name, with `lr_scale` times the rate, which is the group's `lr` if it has one. Parameters
    of no group come first. Batch normalization has no weight decay, unless its group says
    otherwise. Raises ValueError for a group without parameters.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    undecayed = {id(p) for m in norms for p in m.parameters()}
    names = {name: p for name, p in model.named_parameters() if p.requires_grad}
    patterns = [_compile(group["match"]) for group in groups]
    parts: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, p in names.items():
        fitting = (i for i, pattern in enumerate(patterns) if pattern.search(name))
        parts.setdefault((next(fitting, len(groups)), id(p) in undecayed), []).append(p)
    for i, group in enumerate(groups):
        if not {(i, False), (i, True)} & parts.keys():
            raise ValueError(
                f"optimizer.groups: match={group['match']} is in no parameter's name that an "
                f"earlier group has left; type a part of such names as {', '.join([*names][:4])}"
            )
    torch_groups = []
    ungrouped_first = sorted(parts.items(), key=lambda part: part[0][0] < len(groups))
    for (i, is_undecayed), params in ungrouped_first:
        options = dict(groups[i]) if i < len(groups) else {}
        rate = options.pop("lr", lr) * options.pop("lr_scale", 1)
        options.pop("match", None)
        decay = {"weight_decay": 0.0} if is_undecayed else {}
        torch_groups.append({"params": params, "lr": rate, "initial_lr": rate, **decay, **options})
    return torch_groups
