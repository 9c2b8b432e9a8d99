"""Optimizers, which take the aggregated update d as their gradient.

For any optimizer f with state s, where g_i is the gradient of worker i over its micro-batches:

    d_t = Aggregate(g_1 + alpha e_1, ..., g_W + alpha e_W);   e_i <- beta e_i + g_i - sent_i
    x_{t+1}, s_{t+1} = f(x_t, s_t, d_t; lr_t)

Codes, residuals e_i and clipping have the unit of the gradient: the learning rate enters after
aggregation, so that a residual of one step is applied at the rate of a later one. (Karimireddy et
al. 2019 keep lr e_i instead, which is the same at a constant rate.) Weight decay is also added
after aggregation, so it is neither compressed nor fed back; batch normalization has none.

Error feedback relies on the sum of all d being that of all g except for the last residual. SGD with
momentum is linear in d and applies that sum; Adam does not:

    m <- b1 m + (1 - b1) d;   v <- b2 v + (1 - b2) d^2;   x <- x - lr m' / (sqrt(v') + eps)

where m', v' are bias-corrected. v is computed from the decompressed gradients: an unbiased code
adds its variance to v, which shortens steps; a value that is sent every k-th step, as the sum of k
gradients, adds k^2 g^2 every k steps, so that its steps are sqrt(k) times shorter than without
compression. A constant factor of all d, such as a code's bias toward zero, changes nothing beyond
eps. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
Speed", ICML 2021, explain why error compensation fails with Adam, which is not linear in the
gradient, and compress the momentum instead, with v frozen after a warm-up: `FrozenAdam`. With Adam
and AdamW, v keeps changing after the `dense_steps` without compression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim._muon import _adjust_lr

from gcbench.core.codecs.newton_schulz import orthonormalize
from gcbench.core.codecs.updates import Along, adam_step, are_native, momentum_step
from gcbench.runner.settings.groups import OptimizerSettings

CLASS = ("kind", "_target_")  # the keys that name a class, of conf/optimizer or any


class SeveralClasses(Optimizer):
    """Optimizers as one, each of which steps parameters of its own: Muon and AdamW, for example.

    Its groups are theirs, and so is its state, which is saved and loaded like that of any other.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Give the parts the groups and the state of the whole."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state


def options_by_group(optimizer: OptimizerSettings) -> list[dict[str, Any]]:
    """Return the optimizer's options, followed by those of each group.

    Those of a group without a class of its own are merged over the optimizer's.
    """
    options = optimizer.as_dict()
    merged = (group if has_class(group) else {**options, **group} for group in optimizer.groups)
    return [options, *merged]


def has_class(group: Mapping[str, Any]) -> bool:
    """Return whether a group's parameters have an optimizer of another class."""
    return any(key in group for key in CLASS)


def hidden_matrices(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that Muon is for: matrices inside of the model.

    They have two dimensions and are neither an embedding's nor those of the output layer, which is
    the last `nn.Linear` in the order in which the model registers its modules.
    """
    embeddings = [m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    outputs = [m for m in model.modules() if isinstance(m, nn.Linear)][-1:]
    others = {id(p) for m in [*embeddings, *outputs] for p in m.parameters()}
    return {id(p) for p in model.parameters() if p.dim() == 2} - others


def parameter_groups(
    model: nn.Module, lr: float, groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the parameters of a model in groups, in the form that torch's optimizers take.

    A parameter has the options of the first of `groups` whose regular expression `match` is found
    in its name, and whose `hidden` says whether it is one of `hidden_matrices`. Its rate is the
    group's `lr`, or else `lr`, times the group's `lr_scale`. Parameters in no group come first.
    Batch normalization has no weight decay unless its group sets one. Raises ValueError for an
    invalid `match` and for a group without parameters.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    undecayed = {id(p) for m in norms for p in m.parameters()}
    hidden = hidden_matrices(model)
    names = {name: p for name, p in model.named_parameters() if p.requires_grad}
    patterns = [_compile(group.get("match", "")) for group in groups]
    parts: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, p in names.items():
        fitting = (
            i
            for i, group in enumerate(groups)
            if patterns[i].search(name) and group.get("hidden") in (None, id(p) in hidden)
        )
        parts.setdefault((next(fitting, len(groups)), id(p) in undecayed), []).append(p)
    for i, group in enumerate(groups):
        if not {(i, False), (i, True)} & parts.keys():
            raise ValueError(_no_parameter(group, [*names]))
    torch_groups = []
    ungrouped_first = sorted(parts.items(), key=lambda part: part[0][0] < len(groups))
    for (i, is_undecayed), params in ungrouped_first:
        options = dict(groups[i]) if i < len(groups) else {}
        rate = options.pop("lr", lr) * options.pop("lr_scale", 1)
        for key in ("match", "hidden"):
            options.pop(key, None)
        decay = {"weight_decay": 0.0} if is_undecayed else {}
        torch_groups.append({"params": params, "lr": rate, "initial_lr": rate, **decay, **options})
    return torch_groups


def _compile(match: str) -> re.Pattern[str]:
    try:
        return re.compile(match)
    except re.error as error:
        raise ValueError(
            f"optimizer.groups: match={match} is not a regular expression ({error}); type a part "
            "of parameters' names, as in match=bias"
        ) from error


def _no_parameter(group: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the error message for a group that has no parameters."""
    if group.get("hidden") is not None:
        return (
            f"optimizer.groups: hidden={str(group['hidden']).lower()} fits no parameter that an "
            "earlier group has left; leave this group out of optimizer.groups"
        )
    return (
        f"optimizer.groups: match={group['match']} is in no parameter's name that an earlier group "
        f"has left; type a part of such names as {', '.join(names[:4])}"
    )


class SGD(torch.optim.SGD):
    """`torch.optim.SGD`, to the bit, in one pass over memory on a CPU."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        # Without a momentum PyTorch's own is one pass, or two.
        plain = all(_is_plain(group) and group["momentum"] for group in self.param_groups)
        if closure is not None or not plain:
            return super().step(closure)
        for group in self.param_groups:
            xs = _with_gradients(group)
            new = [x for x in xs if "momentum_buffer" not in self.state.get(x, {})]
            along = Along.NESTEROV if group["nesterov"] else Along.MOMENTUM
            old = [x for x in xs if "momentum_buffer" in self.state.get(x, {})]
            for x in new:
                self.state[x]["momentum_buffer"] = torch.empty_like(x)
            for some, first in ((new, True), (old, False)):
                ms = [self.state[x]["momentum_buffer"] for x in some]
                _step_momentum(group, some, ms, along, first)
        return None


class _AdamSteps(torch.optim.Adam):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        plain = all(_is_plain(group) and not group["amsgrad"] for group in self.param_groups)
        if closure is not None or not plain:
            return super().step(closure)
        for group in self.param_groups:
            by_step: dict[float, list[Tensor]] = {}  # parameters may begin in different steps
            for x in _with_gradients(group):
                state = self.state[x]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(x)
                    state["exp_avg_sq"] = torch.zeros_like(x)
                state["step"] += 1
                by_step.setdefault(state["step"].item(), []).append(x)
            for step, xs in by_step.items():
                ms, vs = ([self.state[x][key] for x in xs] for key in ("exp_avg", "exp_avg_sq"))
                adam_step(
                    *(xs, [x.grad for x in xs], ms, vs, group["lr"], group["betas"]),  # type: ignore[arg-type]
                    *(group["eps"], group["weight_decay"], group["decoupled_weight_decay"], step),
                )
        return None


class Adam(_AdamSteps):
    """`torch.optim.Adam`, to the bit, in two passes over memory on a CPU."""


class AdamW(_AdamSteps, torch.optim.AdamW):
    """`torch.optim.AdamW`, to the bit, in two passes over memory on a CPU."""


class PowerSGDMomentum(torch.optim.Optimizer):
    """Momentum after aggregation as in Vogels et al. 2019, algorithm 2:

        m <- momentum m + d;   x <- x - lr (d + m)

    This is not torch's Nesterov momentum: with momentum 0 the step is 2 lr d, and with 0.9 a
    constant d is amplified 11 times, not 10.
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
            ms = [self._momentum(p) for p in params]
            if _is_plain(group):
                _step_momentum(group, params, ms, Along.BOTH)
                continue
            if group["weight_decay"]:
                ds = list(torch._foreach_add(ds, params, alpha=group["weight_decay"]))
            torch._foreach_mul_(ms, group["momentum"])
            torch._foreach_add_(ms, ds)
            torch._foreach_add_(params, torch._foreach_add(ds, ms), alpha=-group["lr"])

    def _momentum(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def _with_gradients(group: Mapping[str, Any]) -> list[Tensor]:
    return [x for x in group["params"] if x.grad is not None]


def _is_plain(group: Mapping[str, Any]) -> bool:
    """Return whether native code can step a group's parameters."""
    xs = _with_gradients(group)
    unusual = group.get("maximize") or group.get("differentiable") or group.get("capturable")
    numbers = not isinstance(group["lr"], Tensor)
    return not unusual and numbers and are_native(xs, [x.grad for x in xs])  # type: ignore[misc]


def _step_momentum(
    group: Mapping[str, Any],
    xs: Sequence[Tensor],
    ms: Sequence[Tensor],
    along: Along,
    first: bool = False,
) -> None:
    momentum_step(
        *(xs, [x.grad for x in xs], ms, group["lr"], group["momentum"]),  # type: ignore[arg-type]
        added=1 - group.get("dampening", 0.0),
        decay=group["weight_decay"],
        along=along,
        first=first,
    )


class FrozenAdam(torch.optim.Optimizer):
    """AdamW whose variance is frozen after T = `freeze_steps` steps, as in Tang et al. 2021:

        m <- b1 m + (1 - b1) d;   v <- b2 v + (1 - b2) d^2 in the first T steps
        x <- x - lr (m / (sqrt(v) + eps) + weight_decay x)

    As in the paper and its code, DeepSpeed, m and v are not bias-corrected: if v is frozen before
    it has settled, all later steps are 1 / sqrt(1 - b2^T) times as long (10, 3.2 and 1.3 times for
    T = 10, 100 and 1000, with b2 = 0.999). With `bias_correction` they are, and for T steps this is
    `torch.optim.AdamW`. After T steps it is momentum with a learning rate for each value, which is
    linear in d. A value that had no gradient until
    then, so that its v is 0, is not updated: the errors of a code, divided by eps, would throw it
    far off. (DeepSpeed's 1-bit Adam lets the user provide a mask for such values.) Where v is tiny,
    as for inputs that are nearly always 0, `eps` limits how far: on digits, 0/1 Adam with signs
    diverged ten steps after the freeze with eps=1e-8, and not with 1e-5 (one seed).

    With `updates_per_interval` = kappa the variance is frozen adaptively, as in Lu et al. 2022: it
    is updated only in the steps k_0 = 0, k_{j+1} = k_j + 2^floor(j / kappa) below T, so that the
    interval doubles after kappa updates. Without it, all steps below T update the variance.
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
        bias_correction: bool = False,
    ) -> None:
        defaults = {"betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        frozen = {"freeze_steps": freeze_steps, "updates_per_interval": updates_per_interval}
        own = {"lr": lr, "bias_correction": bias_correction}
        super().__init__(params, {**own, **frozen, **defaults})

    @property
    def freeze_steps(self) -> int:
        """Return the number of steps after which no variance is updated."""
        return max(group["freeze_steps"] for group in self.param_groups)

    def updates_variance(self, step: int) -> bool:
        """Return whether any variance is updated in this step, counted from 0."""
        return any(_updates_variance(group, step) for group in self.param_groups)

    def roots(self) -> dict[Tensor, Tensor]:
        """Return the divisor of each parameter's steps: sqrt(v) + eps, or inf where v is 0."""
        return {
            p: _root(group, self.state[p]) for group in self.param_groups for p in group["params"]
        }

    def step_sizes(self) -> list[float]:
        """Return for each group the factor of m / (sqrt(v) + eps) in the last step."""
        return [
            group["lr"] / _correction(group, 0, self.state[group["params"][0]]["step"])
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
                size = group["lr"] / _correction(group, 0, state["step"])
                p.addcdiv_(m, _root(group, state), value=-size)


def _updates_variance(group: Mapping[str, Any], step: int) -> bool:
    """Return whether `FrozenAdam` updates a group's variance in this step, counted from 0."""
    if step >= group["freeze_steps"]:
        return False
    updates: int | None = group["updates_per_interval"]
    if updates is None:
        return True
    # The interval 2^b begins at step kappa (2^b - 1), and lasts for kappa updates.
    interval = 1 << (step // updates + 1).bit_length() - 1
    return (step - updates * (interval - 1)) % interval == 0


def _correction(group: Mapping[str, Any], moment: int, updates: int) -> float:
    """Return what a moment is divided by after so many updates: 1 without bias correction."""
    return 1 - group["betas"][moment] ** updates if group["bias_correction"] else 1


def _root(group: Mapping[str, Any], state: Mapping[str, Any]) -> Tensor:
    """Return sqrt(v) + eps of a parameter's state, or inf where v is 0."""
    v: Tensor = state["exp_avg_sq"]
    return (
        (v / _correction(group, 1, state["variance_step"]))
        .sqrt_()
        .add_(group["eps"])
        .masked_fill_(v == 0, torch.inf)
    )


class DionOptimizer(torch.optim.Optimizer):
    """The optimizer for Dion, whose update is a direction for matrices, a gradient for vectors.

    Ahn et al., "Dion: Distributed Orthonormalized Updates", 2025 (arXiv 2504.05295), with Lion
    (Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023) for all tensors
    that are not matrices, at the same learning rate.

    The first line is for tensors of two or more dimensions, the second for all others:

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


class Muon(torch.optim.Muon):
    """torch.optim.Muon, which iterates in float32 where all parameters are on a CPU.

    torch iterates in bfloat16, whose products took 40 times as long as float32's on a CPU without
    instructions for them. Coefficients and steps are the same.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        if not all(p.is_cpu for group in self.param_groups for p in group["params"]):
            return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step_of(p, group)
        return loss

    def _step_of(self, p: Tensor, group: Mapping[str, Any]) -> None:
        state, kept = self.state[p], group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        m = state["momentum_buffer"].lerp_(p.grad, 1 - kept)
        d = p.grad.lerp(m, kept) if group["nesterov"] else m  # type: ignore[union-attr]
        wide = d if d.shape[0] <= d.shape[1] else d.mT
        along = orthonormalize(wide.float(), group["ns_steps"])
        along = along if wide is d else along.mT
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(along, alpha=-_adjust_lr(group["lr"], group["adjust_lr_fn"], p.shape))
