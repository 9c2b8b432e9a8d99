"""Checks of a composed configuration, and its conversion to plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import TypeVar

from omegaconf import DictConfig

from gcbench.core.conf import Config
from gcbench.core.errors import ConfigError
from gcbench.core.fields import hints_of, refusal, to_floats
from gcbench.runner.config.budget import PAPER, Budget, apply_budget
from gcbench.runner.config.checks import (
    check_division,
    check_groups,
    check_kinds,
    check_nesterov,
    check_target,
    refuse_idle,
    refuse_name,
    validate,
)
from gcbench.runner.config.choices import (
    GROUPS,
    WITH_TARGETS,
    choices_of,
    experiment_of,
    typed_keys,
    typed_knobs,
)
from gcbench.runner.config.composed import Composed, fill, settle_bits
from gcbench.runner.config.keys import keys_by_choice
from gcbench.runner.config.sentences import unknown_key, value_for_group
from gcbench.runner.config.typed import typed_for
from gcbench.runner.identity import all_knobs
from gcbench.runner.settings.config import PARTS, SCHEMAS, BenchConfig, Resolved, RunConfig
from gcbench.runner.settings.groups import RunSettings

C = TypeVar("C", bound=Resolved)


def resolve(given: DictConfig | Composed, budget: Budget | None = None) -> RunConfig:
    """Return the checked configuration of a run, from what was composed.

    `budget` replaces the one that it chose, but for its name among the choices. Raises ConfigError
    for a mistake.
    """
    composed = Composed.of(given)
    values = settle(composed, budget)
    # What the files of a model and of a data set say only to fit together.
    reads, kind = values["model"].pop("reads", None), values["dataset"].pop("kind", None)
    config = _validate(RunConfig, composed, {**values, "knobs": {}})
    check_groups(config.optimizer)
    refuse_idle(all_knobs(values), typed_keys(composed))
    check_kinds(config.choices, reads, kind)
    check_division(config.trainer)
    check_nesterov(config.optimizer)
    check_target(config.trainer)
    typed = {"knobs": typed_knobs(composed, values), "typed": typed_for(composed)}
    return config.model_copy(update=typed)


def resolve_benchmark(given: DictConfig) -> BenchConfig:
    """Return the checked configuration of `gcbench bench`."""
    composed = Composed.of(given)
    values = settle(composed)
    config = _validate(BenchConfig, composed, values)
    refuse_idle(all_knobs(values), typed_keys(composed))
    return config


def _validate(kind: type[C], composed: Composed, values: Config) -> C:
    _refuse_added_keys(composed, values)
    refuse_name(values["name"])
    return validate(kind, values)


def _refuse_sweep_without_m(composed: Composed) -> None:
    """Refuse a launcher or a sweeper of one run, which Hydra starts here without a word."""
    for override in composed.typed_for_hydra:
        of_sweeps = re.match(r"\+*hydra[./](launcher|sweeper|sweep)\b", override)
        if of_sweeps and not composed.in_sweep:
            raise ConfigError(
                f"{override}: only gcbench -m reads this, and without -m a run starts on this "
                f"machine; type gcbench -m {override}, or leave it out"
            )


def settle(given: DictConfig | Composed, budget: Budget | None = None) -> Config:
    """Return plain values with the budget applied, `choices` by group, and `experiment`.

    The latter is paper/table/row, or None.
    """
    composed = Composed.of(given)
    tree = deepcopy(composed.tree)
    typed = typed_keys(composed)
    choices, experiment = choices_of(composed), experiment_of(composed)
    _refuse_sweep_without_m(composed)
    _refuse_removed_keys(composed)
    outputs = tree.get("outputs", "outputs")  # before a directory is named in it
    if sentence := refusal("outputs", outputs, hints_of(RunSettings)["outputs"]):
        raise ConfigError(sentence)
    _refuse_values_for_groups({**tree, "budget": composed.budget}, choices)
    if choices.get("budget") != PAPER and (budget or composed.budget):
        apply_budget(budget or Budget.read(composed.budget or {}), tree, choices, typed)
    settle_bits(tree, typed)
    config = {"choices": choices, "experiment": experiment, **fill(tree)}
    for group in WITH_TARGETS:
        _keep_typed_keys_of_other_target(group, config, typed)
    if "optimizer" in config:
        _check_rate(config["optimizer"])
        for group, schema in SCHEMAS.items():
            to_floats(config[group], schema)
    return config


def _refuse_removed_keys(composed: Composed) -> None:
    """Refuse ~seed, ~schedule, ~trainer.epochs and the like, without which there is no run."""
    fixed = [group for group in SCHEMAS if group not in WITH_TARGETS]
    of_groups = [f"{group}.{key}" for group in fixed for key in SCHEMAS[group].model_fields]
    needed = {*RunSettings.model_fields, *GROUPS, "budget", *of_groups}
    for override in composed.typed:
        if override.startswith("~") and override[1:].partition("=")[0] in needed:
            raise ConfigError(f"{override}: every run needs this key; leave this out")


def _refuse_values_for_groups(tree: Config, choices: Mapping[str, str]) -> None:
    for group in choices:
        value = tree.get(group)
        if group in tree and not isinstance(value, dict):
            name = "null" if value is None else value
            raise ConfigError(value_for_group(group, name, isinstance(value, str)))
    for group in GROUPS:
        if group not in choices and isinstance(tree.get(group), dict):
            raise ConfigError(value_for_group(group, "[...]", is_name=False))


def _check_rate(optimizer: Config) -> None:
    """Refuse an optimizer without a learning rate, which schedules, budgets and reports read."""
    if "lr" not in optimizer:
        raise ConfigError(
            f"optimizer._target_={optimizer['_target_']}: type its learning rate too, as in "
            "optimizer.lr=0.001"
        )


def _keep_typed_keys_of_other_target(group: str, config: Config, typed: set[str]) -> None:
    """Keep only the typed keys of a group whose `_target_` was typed, not those of its file."""
    if f"{group}._target_" in typed:
        config[group] = {k: v for k, v in config[group].items() if f"{group}.{k}" in typed}


def _refuse_added_keys(composed: Composed, config: Config) -> None:
    """Refuse an added key that nothing reads, such as +rank=2 or +optimizer.betas=[0.9,0.95].

    Keys that are added to a node with a `_target_` are left to its class to refuse.
    """
    groups = {k.split("@")[0] for k in composed.choices}
    optimizers, methods = keys_by_choice("optimizer"), keys_by_choice("compressor")
    own = {*methods.get(config["choices"].get("compressor"), ()), *RunSettings.model_fields}
    fixed = {**SCHEMAS, "data": PARTS["data"]}
    known = {group: {*schema.model_fields} for group, schema in fixed.items()}
    known["optimizer"] = set(optimizers.get(config["choices"].get("optimizer"), ()))
    for override in composed.typed:
        key, _, value = override.lstrip("+").partition("=")
        group, _, leaf = key.partition(".")
        node = config.get(group) if leaf else None
        if not override.startswith("+") or key in own | groups or (node and "_target_" in node):
            continue
        if not leaf or (group in known and leaf not in known[group]):
            raise ConfigError(unknown_key(key, value, benchmark="trainer" not in config))
