"""Configurations of the rows of tables."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gcbench.config import (
    PAPER,
    Config,
    ConfigError,
    IdleKeyError,
    compose_overrides,
    resolve,
)
from gcbench.identity import ABSENT, Flat, clear_folders, flatten_config, identify
from gcbench.report.resolved import find_resolved, keep_resolved
from gcbench.report.tables import TableRow, overrides_of


class Composition(NamedTuple):
    """The configuration of an experiment at a budget."""

    config: Config
    choices: dict[str, str]
    flat: Flat
    identity: str


def compose(experiment: str, budget: str = PAPER, overrides: tuple[str, ...] = ()) -> Composition:
    """Return the configuration of `+experiment/<paper>/<table>=<row> budget=... overrides`.

    It is read from the user's cache if it is there, else composed by Hydra and added to it. Raises
    the errors of Hydra and of the configuration checks.
    """
    return _compose_once(experiment, budget, overrides)


@cache
def _compose_once(experiment: str, budget: str, overrides: tuple[str, ...]) -> Composition:
    key = " ".join([experiment, f"budget={budget}", *overrides])
    config = find_resolved(experiment, key)
    if config is None:
        config = clear_folders(compose_experiment(experiment, budget, overrides))
        keep_resolved(experiment, key, config)
    return composition_of(config)


def composition_of(config: Config) -> Composition:
    """Return a resolved configuration of plain values with what is derived from it."""
    return Composition(config, config["choices"], flatten_config(config), identify(config))


def compose_experiment(experiment: str, budget: str, overrides: tuple[str, ...]) -> Config:
    """Return the resolved configuration as plain values, composed by Hydra."""
    tree = deepcopy(_tree(experiment, overrides))
    tree.budget = _budget_node(budget)
    tree.hydra.runtime.choices["budget"] = budget
    config: Config = json.loads(json.dumps(resolve(tree).as_dict()))
    return config


@cache
def _tree(experiment: str, overrides: tuple[str, ...]) -> Any:
    return compose_overrides([experiment_override(experiment), *overrides])


@cache
def _budget_node(budget: str) -> Any:
    """Return the budget's node, which is composed once for all experiments."""
    return compose_overrides([f"budget={budget}"]).budget


@cache
def data_folder() -> Path:
    """Return the folder of the data sets: data.root without any override."""
    return Path(compose_overrides([]).data.root).expanduser()


def settings_at(row: TableRow, budget: str) -> dict[str, Any]:
    """Return the row's own settings at a budget, with no more workers than the budget has."""
    settings = {**row.settings, **row.at.get(budget, {})}
    if row.workers is not None and budget != PAPER:
        most = compose(str(row.experiment), budget).config["trainer"]["gpus"]
        settings["trainer.gpus"] = min(row.workers, most)
    return settings


def compose_row(row: TableRow, budget: str = PAPER, overrides: tuple[str, ...] = ()) -> Composition:
    """Return the row's configuration; `overrides` are added after the row's own."""
    return compose(
        str(row.experiment), budget, (*overrides_of(settings_at(row, budget)), *overrides)
    )


def overrides_for(experiment: str, budget: str, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Return the overrides whose key the experiment reads.

    Others do not apply to it: not every row has buckets, for example.
    """
    known = compose(experiment, budget).config
    return tuple(
        override
        for override in overrides
        if read_key(known, override.partition("=")[0]) is not ABSENT
        and not _is_idle(experiment, budget, override)
    )


def _is_idle(experiment: str, budget: str, override: str) -> bool:
    try:
        compose(experiment, budget, (override,))
    except IdleKeyError:
        return True
    return False


def read_key(config: Config, key: str) -> Any:
    """Return the value of a dotted key; ABSENT if there is no such key."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return ABSENT
        node = node[part]
    return node


def experiment_override(experiment: str) -> str:
    group, _, row = experiment.rpartition("/")
    if not group:
        raise ConfigError(
            f"experiment {experiment}: type <paper>/<table>/<row>, as in powersgd/table4/rank_7"
        )
    return f"+experiment/{group}={row}"
