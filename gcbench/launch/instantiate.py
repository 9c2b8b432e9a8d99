"""Objects from `_target_` nodes, with the mistakes in them named by their key."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf
from torch import nn
from torch.optim import Optimizer

from gcbench.compressors import Compressor
from gcbench.config import Config, ConfigError, near
from gcbench.data import Data, as_data
from gcbench.identity import format_value
from gcbench.knobs import hints_of, knobs_of, refusal
from gcbench.method_settings import MethodSettings
from gcbench.settings import ScheduleSettings
from gcbench.train.optimizers import parameter_groups
from gcbench.train.schedules import FactorSchedule, Schedule, TorchSchedule

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


# The classes of conf/optimizer, by kind.
OPTIMIZERS: dict[str, Config] = {
    "sgd": {"_target_": "torch.optim.SGD", "foreach": True},
    "powersgd": {"_target_": "gcbench.train.optimizers.PowerSGDMomentum"},
    "adam": {"_target_": "torch.optim.Adam", "foreach": True},
    "adamw": {"_target_": "torch.optim.AdamW", "foreach": True},
    "frozen_adam": {"_target_": "gcbench.train.optimizers.FrozenAdam"},
    "dion": {"_target_": "gcbench.train.optimizers.DionOptimizer"},
}
LENGTHS = ("T_max", "total_steps")  # arguments of torch's schedulers: how many rates they set


def make(node: Config, key: str, *arguments: Any) -> Any:
    """Return the object that `node` describes; `key` is its place in the configuration.

    `arguments` come first, and are no keys of the node.
    """
    _check(node, key, len(arguments))
    try:
        return instantiate(node, *arguments, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError):
            raise ConfigError(_name_key(str(error.__cause__), key)) from error.__cause__
        if error.__cause__ and is_user_code(node):
            raise ConfigError(
                user_code_error(f"{key}._target_={node['_target_']}", error.__cause__)
            ) from error.__cause__
        raise error.__cause__ or error from None


def make_compressor(node: Config, quiet: bool = False) -> Compressor:
    """Return the compressor of a node; `quiet` drops warnings that somebody else has shown."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        return make(node, "compressor")


def is_user_code(node: Config) -> bool:
    """Return whether the target of `node` is the user's code."""
    return not str(node["_target_"]).startswith("gcbench.")


def user_code_error(what: str, error: BaseException) -> str:
    """Return the sentence for an exception that a user's code has raised."""
    gist = str(error).partition("\n")[0]
    return (
        f"{what} raises {type(error).__name__}: {gist}; type HYDRA_FULL_ERROR=1 before the command "
        "to see where"
    )


def make_data(config: Config) -> Data:
    name = config["choices"]["dataset"]
    return as_data(make(config["dataset"], "dataset"), name)


def make_model(node: Config, shape: Sequence[int], outputs: int) -> nn.Module:
    """Return a model for samples of `shape` and so many outputs.

    These settle what the node leaves open (null), or what the arguments of a user's own model do.
    """
    facts = {"shape": list(shape), "outputs": outputs, "vocabulary": outputs}
    settled = _settle(node, "model", facts)
    settled.pop("reads", None)  # the kind of data, which is for the checks of a run
    model = make(settled, "model")
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model._target_={node['_target_']} makes a {type(model).__name__}, which is no "
            "torch.nn.Module; type the name of a class that is one, or of a function that returns "
            "one"
        )
    return model


def make_optimizer(node: Config, model: nn.Module) -> Optimizer:
    """Return the optimizer of a model's parameters: one of conf/optimizer, or any class."""
    return _make_optimizer(node, parameter_groups(model, node["lr"], _groups(node)))


def try_step(optimizer: Config, schedule: Config, model: nn.Module) -> None:
    """Raise ConfigError where the optimizer or the schedule cannot be made or cannot take a step.

    The step is taken on small stand-ins for the parameters, which may be on the meta device.
    """
    groups = parameter_groups(model, optimizer["lr"], _groups(optimizer))
    for group in groups:
        shapes = [[min(2, n) for n in p.shape] for p in group["params"]]
        group["params"] = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    made = _make_optimizer(optimizer, groups)
    before = [dict(group) for group in made.param_groups]
    rates = make_schedule(schedule, made, workers=1, steps_per_epoch=1, steps=2)
    _refuse_lost_options(optimizer, schedule, before, made.param_groups)
    for group in made.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    steps: list[tuple[str, Config, Callable[[], Any]]] = [
        ("optimizer", optimizer, made.step),
        ("schedule", schedule, partial(rates.set_rates, made, 1)),
    ]
    for key, node, step in steps:
        try:
            step()
        except Exception as error:
            if "_target_" not in node:
                raise
            what = f"{key}._target_={node['_target_']} in a step"
            raise ConfigError(user_code_error(what, error)) from error


def _refuse_lost_options(
    optimizer: Config,
    schedule: Config,
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
) -> None:
    """Refuse a scheduler of torch that puts its own values in the place of the optimizer's."""
    asked, set_to = ([group["lr"] for group in groups] for groups in (before, after))
    pairs = zip(asked, set_to, strict=True)
    if not all(math.isclose(a * set_to[0], b * asked[0]) for a, b in pairs):
        raise ConfigError(
            f"schedule._target_={schedule['_target_']} sets the rate of every group by itself; "
            "type one for each, as in schedule.max_lr=[0.1,0.2], or leave lr and lr_scale out of "
            "optimizer.groups"
        )
    for old, new in zip(before, after, strict=True):
        gains = old.get("momentum") == 0 and new["momentum"] != 0
        if gains or (optimizer.get("kind") == "frozen_adam" and old["betas"] != new["betas"]):
            name = optimizer.get("kind", optimizer.get("_target_"))
            raise ConfigError(
                f"schedule._target_={schedule['_target_']} changes the momentum of "
                f"optimizer={name}, which is to stay as it is; type schedule.cycle_momentum=false"
            )


def _make_optimizer(node: Config, groups: list[dict[str, Any]]) -> Optimizer:
    settings = {k: v for k, v in node.items() if k not in ("kind", "groups")}
    target = OPTIMIZERS[node["kind"]] if "kind" in node else {}
    optimizer = make({**target, **settings}, "optimizer", groups)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"optimizer._target_={node['_target_']} makes a {type(optimizer).__name__}, which is "
            "no torch.optim.Optimizer; type the name of a class that is one, or of a function that "
            "returns one"
        )
    for group in _groups(node):
        for key in group.keys() - {"match", "lr_scale", *optimizer.defaults}:
            raise ConfigError(
                f"optimizer.groups: {key}={format_value(group[key])}: a group of "
                f"{type(optimizer).__name__} has match, lr_scale, {', '.join(optimizer.defaults)}"
            )
    return optimizer


def _groups(node: Config) -> list[Config]:
    groups: list[Config] = node.get("groups", [])
    for group in groups:
        if "match" not in group:
            raise ConfigError(
                f"optimizer.groups={format_value(groups)}: a group has no `match`; type one, as in "
                "optimizer.groups=[{match:bias,lr_scale:2}]"
            )
    return groups


def make_schedule(
    node: Config, optimizer: Optimizer, workers: int, steps_per_epoch: int, steps: int
) -> Schedule:
    """Return our schedule, or a scheduler of torch for `optimizer`.

    What it leaves open of LENGTHS is the number of rates that it sets in the run.
    """
    if "_target_" not in node:
        settings = to_dataclass(ScheduleSettings, node)
        return FactorSchedule(settings, workers, steps_per_epoch, steps)
    every = steps_per_epoch if node.get("interval") == "epoch" else 1
    settled = _settle(node, "schedule", dict.fromkeys(LENGTHS, max(1, math.ceil(steps / every))))
    settled.pop("interval", None)
    return TorchSchedule(make(settled, "schedule", optimizer), every)


def fits_one_length(schedule: Config) -> bool:
    """Return whether the length of the run fills what `schedule` leaves open."""
    if "_target_" not in schedule:
        return False
    return _settle(schedule, "schedule", dict.fromkeys(LENGTHS, 1)) != schedule


def parameter_shapes(
    node: Config, shape: Sequence[int], outputs: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's trained parameters by name, without making its weights."""
    with torch.device("meta"):
        model = make_model(node, shape, outputs)
    return {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}


def to_dataclass(schema: type[Any], node: Config) -> Any:
    """Return a node of the configuration as its dataclass."""
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), node))


def _settle(node: Config, key: str, facts: Config) -> Config:
    """Return a node in which `facts` fill what it, or the signature of its target, leaves open."""
    parameters = inspect.signature(_target(node, key)).parameters
    left_open = {
        k: None for k, p in parameters.items() if k in facts and p.default in (p.empty, None)
    }
    return {
        k: facts[k] if v is None and k in facts else v for k, v in {**left_open, **node}.items()
    }


def _name_key(text: str, key: str) -> str:
    return text if key in text or "=" in text.split(" ")[0] else f"{key}: {text}"


def _check(node: Config, key: str, arguments: int = 0) -> None:
    """Refuse keys of a node, and of nodes inside it, that its target does not take.

    The first `arguments` of the target come from elsewhere.
    """
    target = _target(node, key)
    parameters = dict([*inspect.signature(target).parameters.items()][arguments:])
    hints = _hints(target)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name, value in node.items():
        if name.startswith("_"):
            continue
        if name not in parameters and not takes_any:
            has = ", ".join(parameters) or "none"
            raise ConfigError(
                f"{key}.{name}={format_value(value)}: {node['_target_']} has no such argument; "
                f"it has {has}"
            )
        if isinstance(value, dict) and "_target_" in value:
            _check(value, f"{key}.{name}")
            continue
        is_top_level = key.startswith("compressor") and name in knobs_of(MethodSettings)
        label = name if is_top_level else f"{key}.{name}"
        if sentence := refusal(label, value, hints.get(name, Any)):
            raise ConfigError(sentence)
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and parameter.kind in NAMED and name not in node:
            raise ConfigError(f"{key}.{name}: {node['_target_']} needs it; type {key}.{name}=VALUE")


def _target(node: Config, key: str) -> Any:
    try:
        return get_object(node["_target_"])
    except Exception as error:
        typed = f"{key}._target_={node['_target_']}"
        module, _, name = node["_target_"].rpartition(".")
        if module in sys.modules:  # it could be imported, and lacks the name
            advice = near(name, vars(sys.modules[module])) or "a name that it has"
            raise ConfigError(f"{typed}: {module} has no {name}; type {advice}") from error
        raise ConfigError(f"{typed} cannot be imported: {_root(error)}") from error


def _root(error: BaseException) -> BaseException:
    return _root(error.__cause__) if error.__cause__ else error


def _hints(target: Any) -> dict[str, Any]:
    """Return annotations; none of a user's target whose annotations cannot be resolved."""
    try:
        return hints_of(target)
    except (NameError, TypeError, AttributeError):
        return {}
