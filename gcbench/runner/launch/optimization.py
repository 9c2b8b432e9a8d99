"""Optimizers and schedules made from their nodes, and a trial step before a run begins."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gcbench.core.compressor import Compressor
from gcbench.core.conf import Config
from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.core.methods.dion import Dion, Dion2
from gcbench.core.methods.onebit_adam import MomentumCoding
from gcbench.core.wrappers.virtual import dense_steps_of, parts_of
from gcbench.runner.launch.instantiate import fill_open, make, user_code_error
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.settings.groups import OpenSettings, OptimizerSettings, ScheduleSettings
from gcbench.runner.train.optimizers import (
    SeveralClasses,
    has_class,
    options_by_group,
    parameter_groups,
)
from gcbench.runner.train.run import Estimator
from gcbench.runner.train.schedules import FactorSchedule, Schedule, TorchSchedule

log = logging.getLogger("gcbench")

# The classes of conf/optimizer, by kind.
OPTIMIZERS: dict[str, Config] = {
    "sgd": {"_target_": "gcbench.runner.train.optimizers.SGD", "foreach": True},
    "powersgd": {"_target_": "gcbench.runner.train.optimizers.PowerSGDMomentum"},
    "adam": {"_target_": "gcbench.runner.train.optimizers.Adam", "foreach": True},
    "adamw": {"_target_": "gcbench.runner.train.optimizers.AdamW", "foreach": True},
    "frozen_adam": {"_target_": "gcbench.runner.train.optimizers.FrozenAdam"},
    "dion": {"_target_": "gcbench.runner.train.optimizers.DionOptimizer"},
    "muon": {"_target_": "gcbench.runner.train.optimizers.Muon"},
}
# Arguments of torch's schedulers that say how many rates they set.
LENGTHS = ("T_max", "total_steps")


def make_optimizer(settings: OptimizerSettings, model: nn.Module) -> Optimizer:
    """Return the optimizer of a model's parameters: one of conf/optimizer, or of any class."""
    return _make_optimizer(settings, _group_parameters(settings, model))


def check_optimizer(
    config: RunConfig, model: nn.Module, compressor: Compressor, estimator: Estimator
) -> None:
    """Raise ConfigError for an optimizer or a schedule that does not fit model and method."""
    _check_directions(config, compressor, estimator)
    codes_momentum = any(isinstance(part, MomentumCoding) for part in parts_of(compressor))
    try_step(config.optimizer, config.schedule, model, fixed_momentum=codes_momentum)
    check_momentum(config.optimizer, compressor, config.choices["compressor"])


def _check_directions(config: RunConfig, compressor: Compressor, estimator: Estimator) -> None:
    """Refuse Dion's optimizer unless a Dion compressor supplies its directions."""
    if all(options.get("kind") != "dion" for options in options_by_group(config.optimizer)):
        return
    if not any(isinstance(part, (Dion, Dion2)) for part in parts_of(compressor)):
        raise ConfigError(
            f"optimizer=dion steps along directions, and compressor="
            f"{config.choices['compressor']} makes none; type compressor=dion or "
            "dion2, or optimizer=adamw"
        )
    if estimator.worker_copies:
        raise ConfigError(
            f"optimizer=dion estimator={config.choices['estimator']}: workers would step along "
            "their own gradients, not along directions; type optimizer=adamw, or estimator=sgd"
        )


def try_step(
    optimizer: OptimizerSettings,
    schedule: ScheduleSettings,
    model: nn.Module,
    fixed_momentum: bool = False,
) -> None:
    """Raise ConfigError if the optimizer or the schedule cannot be made or cannot take a step.

    The step is taken on small stand-ins for the parameters, which may be on the meta device. With
    `fixed_momentum`, a schedule that changes the optimizer's momentum is refused, too.
    """
    groups = _group_parameters(optimizer, model)
    for group in groups:
        shapes = [[min(2, n) for n in p.shape] for p in group["params"]]
        group["params"] = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    made = _make_optimizer(optimizer, groups)
    before = [dict(group) for group in made.param_groups]
    rates = make_schedule(schedule, made, workers=1, steps_per_epoch=1, steps=2)
    _refuse_lost_rates(schedule, before, made.param_groups)
    fixed_momentum |= optimizer.kind == "frozen_adam"
    fixed_momentum |= any(group.get("momentum") == 0 for group in before)
    if fixed_momentum and _changes_momentum(rates, before, made.param_groups):
        name = optimizer.kind or optimizer.target
        raise ConfigError(
            f"schedule._target_={schedule.target} changes the momentum of optimizer={name}, "
            "which is to stay as it is; type schedule.cycle_momentum=false"
        )
    for group in made.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    steps: list[tuple[str, OpenSettings, Callable[[], Any]]] = [
        ("optimizer", optimizer, made.step),
        ("schedule", schedule, partial(rates.set_rates, made, 1)),
    ]
    for key, settings, step in steps:
        try:
            step()
        except Exception as error:
            if settings.target is None:
                raise
            what = f"{key}._target_={settings.target} in a step"
            raise ConfigError(user_code_error(what, error)) from error


def check_momentum(optimizer: OptimizerSettings, compressor: Compressor, name: str) -> None:
    """Refuse an optimizer that does not use a coded momentum as the method assumes.

    Warns of two momenta, the optimizer's and that of the compressor `name`.
    """
    options = options_by_group(optimizer)
    for part in parts_of(compressor):
        if isinstance(part, MomentumCoding):
            for some in options:
                part.refuse_optimizer(some, dense_steps_of(compressor))
        elif getattr(part, "momentum", 0) and any(some.get("momentum") for some in options):
            nesterov = any(some.get("nesterov") for some in options)
            log.warning(
                "compressor=%s has a momentum of its own, and the optimizer a second one; type "
                "optimizer.momentum=0%s",
                name,
                " optimizer.nesterov=false" if nesterov else "",
            )


def _refuse_lost_rates(
    schedule: ScheduleSettings,
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
) -> None:
    """Refuse a torch scheduler that replaces the rates of the optimizer's groups with its own."""
    asked, set_to = ([group["lr"] for group in groups] for groups in (before, after))
    pairs = zip(asked, set_to, strict=True)
    if not all(math.isclose(a * set_to[0], b * asked[0]) for a, b in pairs):
        raise ConfigError(
            f"schedule._target_={schedule.target} sets the rate of every group by itself; "
            "type one for each, as in schedule.max_lr=[0.1,0.2], or leave lr and lr_scale out of "
            "optimizer.groups"
        )


def _changes_momentum(
    rates: Schedule, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> bool:
    """Return whether a schedule has changed the momentum of an optimizer's groups, or will."""
    if isinstance(rates, TorchSchedule) and getattr(rates.scheduler, "cycle_momentum", False):
        return True  # even if it starts at the optimizer's own momentum
    keys = ("momentum", "betas")
    pairs = zip(before, after, strict=True)
    return any(old.get(key) != new.get(key) for old, new in pairs for key in keys)


def _make_optimizer(settings: OptimizerSettings, groups: list[dict[str, Any]]) -> Optimizer:
    """Return the optimizer, and beside it those of groups that have another class."""
    own = [group for group in groups if not has_class(group)]
    options = {k: v for k, v in settings.as_dict().items() if k != "groups"}
    optimizer = _make_class(options, "optimizer", own)
    for group in _groups(settings):
        for key in group.keys() - {"match", "hidden", "lr_scale", *optimizer.defaults}:
            if not has_class(group):
                raise ConfigError(
                    f"optimizer.groups: {key}={format_value(group[key])}: a group of "
                    f"{type(optimizer).__name__} has match, hidden, lr_scale, "
                    f"{', '.join(optimizer.defaults)}"
                )
    others = []
    for group in groups:
        if has_class(group):
            alone = {key: group.pop(key) for key in ("params", "initial_lr")}
            others.append(_make_class(group, "optimizer.groups", [alone]))
    return SeveralClasses([optimizer, *others]) if others else optimizer


def _make_class(node: Config, key: str, groups: list[dict[str, Any]]) -> Optimizer:
    target = OPTIMIZERS[node["kind"]] if "kind" in node else {}
    settings = {k: v for k, v in node.items() if k != "kind"}
    optimizer = make({**target, **settings}, key, groups)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"{key}._target_={node['_target_']} makes a {type(optimizer).__name__}, which is "
            "not a torch.optim.Optimizer; type the name of a class that is one, or of a function "
            "that returns one"
        )
    return optimizer


def _group_parameters(settings: OptimizerSettings, model: nn.Module) -> list[dict[str, Any]]:
    """Return a model's parameters in groups; refuse none for the optimizer, and vectors for Muon.

    They are in the form that torch's optimizers take, apart from the class of a group.
    """
    groups = parameter_groups(model, settings.lr, _groups(settings))
    own = [p for group in groups if not has_class(group) for p in group["params"]]
    name = f"optimizer={settings.kind or settings.target}"
    if not own:
        raise ConfigError(
            f"{name}: its groups give all parameters of this model to other optimizers; type "
            "optimizer=adamw, or optimizer.groups=[]"
        )
    shapes = [list(p.shape) for p in own if p.dim() != 2]
    if settings.kind == "muon" and shapes:
        raise ConfigError(
            f"{name}: it takes matrices, and no group has a parameter of shape {shapes[0]}; type "
            "optimizer.groups=[{hidden:false,kind:adamw}]"
        )
    return groups


def _groups(settings: OptimizerSettings) -> list[Config]:
    groups = settings.groups
    for group in groups:
        if "match" not in group and "hidden" not in group:
            raise ConfigError(
                f"optimizer.groups={format_value(groups)}: a group has no `match` and no `hidden`; "
                "type one, as in optimizer.groups=[{match:bias,lr_scale:2}]"
            )
    return groups


def make_schedule(
    settings: ScheduleSettings, optimizer: Optimizer, workers: int, steps_per_epoch: int, steps: int
) -> Schedule:
    """Return one of gcbench's schedules, or a torch scheduler for `optimizer`.

    Arguments in LENGTHS that the settings leave open get the number of rates set in the run.
    """
    if settings.target is None:
        return FactorSchedule(settings, workers, steps_per_epoch, steps)
    every = steps_per_epoch if settings.interval == "epoch" else 1
    settled = _fill_lengths(settings.as_dict(), max(1, math.ceil(steps / every)))
    settled.pop("interval", None)
    return TorchSchedule(make(settled, "schedule", optimizer), every)


def fits_one_length(schedule: ScheduleSettings) -> bool:
    """Return whether `schedule` has open arguments that the length of the run fills."""
    if schedule.target is None:
        return False
    node = schedule.as_dict()
    return _fill_lengths(node, 1) != node


def _fill_lengths(schedule: Config, rates: int) -> Config:
    """Return a torch scheduler's node in which `rates` fills the arguments in LENGTHS left open."""
    lengths = dict.fromkeys(LENGTHS, rates)
    if {"epochs", "steps_per_epoch"} & schedule.keys():
        del lengths["total_steps"]  # OneCycleLR would ignore what was typed in its place
    return fill_open(schedule, "schedule", lengths)
