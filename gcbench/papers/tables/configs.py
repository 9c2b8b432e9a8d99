"""Configurations of rows of tables."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gcbench.core.errors import ConfigError, IdleKeyError
from gcbench.papers.tables.kept_configs import find_resolved, keep_resolved
from gcbench.papers.tables.tables import TableRow, overrides_of, read_table, table_names
from gcbench.runner.config.budget import PAPER, Budget
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.composed import Composed
from gcbench.runner.config.resolve import resolve
from gcbench.runner.config.rows import merge_row
from gcbench.runner.console import with_bar
from gcbench.runner.identity import (
    ABSENT,
    Config,
    Flat,
    clear_folders,
    flatten_config,
    identify,
)
from gcbench.runner.settings.config import RunConfig


class Composition(NamedTuple):
    """The configuration of an experiment at a budget."""

    config: Config
    choices: dict[str, str]
    flat: Flat
    identity: str

    @property
    def run(self) -> RunConfig:
        """Return the configuration as a model, of which keys are read by name."""
        return RunConfig.of(self.config)


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
    """Return the resolved configuration as plain values."""
    if row := merge_row(experiment, overrides):
        chosen = {**row.choices, "budget": budget}
        resolved = resolve(replace(row, choices=chosen), _budget(budget))
    else:
        typed = [experiment_override(experiment), f"budget={budget}", *overrides]
        resolved = resolve(compose_overrides(typed))
    config: Config = json.loads(json.dumps(resolved.as_dict()))
    return config


@cache
def _budget(name: str) -> Budget:
    """Return a budget, which is composed once for all experiments."""
    return Budget.read(Composed.of(compose_overrides([f"budget={name}"])).budget or {})


@cache
def data_folder() -> Path:
    """Return the folder of the data sets: data.root without any override."""
    return Path(compose_overrides([]).data.root).expanduser()


def settings_at(row: TableRow, budget: str) -> dict[str, Any]:
    """Return the row's own settings at a budget, with no more workers than the budget has."""
    settings = {**row.settings, **row.at.get(budget, {})}
    if row.workers is not None and budget != PAPER:
        most = compose(str(row.experiment), budget).run.trainer.workers
        settings["trainer.workers"] = min(row.workers, most)
    return settings


def compose_row(row: TableRow, budget: str = PAPER, overrides: tuple[str, ...] = ()) -> Composition:
    """Return the row's configuration; `overrides` are added after the row's own."""
    return compose(
        str(row.experiment), budget, (*overrides_of(settings_at(row, budget)), *overrides)
    )


def tables_by_identity(budget: str) -> dict[str, set[str]]:
    """Return by identity the tables that have such a row; several tables may share one run."""
    tables: dict[str, set[str]] = {}
    for name in with_bar(table_names(), f"budget={budget}"):
        for row in read_table(name).rows:
            if row.experiment is not None:
                tables.setdefault(compose_row(row, budget).identity, set()).add(name)
    return tables


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


log = logging.getLogger("gcbench")
