"""The configurations that rows of tables ask for."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

from gcbench.config import Config, ConfigError, compose_words, register, resolve
from gcbench.identity import ABSENT, Differences, Flat, flatten_config, format_value, identify
from gcbench.report.resolved import key_of, read_resolved
from gcbench.report.tables import TableRow, words_of

PAPER = "paper"


class Composed(NamedTuple):
    """The configuration of an experiment at a budget."""

    config: Config
    choices: dict[str, str]
    flat: Flat
    identity: str


def composed(experiment: str, budget: str = PAPER, words: tuple[str, ...] = ()) -> Composed:
    """Return what `+experiment/<paper>/<table>=<row> budget=... words` resolves to.

    It is read where conf/experiment/resolved.jsonl.gz has it, else composed, each once. Raises what
    Hydra and the checks raise.
    """
    return _composed(experiment, budget, words)


@cache
def _composed(experiment: str, budget: str, words: tuple[str, ...]) -> Composed:
    stored = read_resolved().get(key_of(experiment, budget, words))
    config = compose_experiment(experiment, budget, words) if stored is None else stored
    return Composed(config, config["choices"], flatten_config(config), identify(config))


def compose_experiment(experiment: str, budget: str, words: tuple[str, ...]) -> Config:
    """Return the resolved configuration as plain values, composed by Hydra."""
    tree = deepcopy(_tree(experiment, words))
    tree.budget = _budget_node(budget)
    tree.hydra.runtime.choices["budget"] = budget
    config: Config = json.loads(json.dumps(resolve(tree)))
    return config


@cache
def _tree(experiment: str, words: tuple[str, ...]) -> Any:
    register()
    return compose_words([experiment_word(experiment), *words])


@cache
def _budget_node(budget: str) -> Any:
    """Composing once for all budgets takes a third of the time."""
    register()
    return compose_words([f"budget={budget}"]).budget


def settings_at(row: TableRow, budget: str) -> dict[str, Any]:
    """Return what is typed beside the row's experiment: no more workers than the budget allows."""
    settings = row.settings
    if row.workers is not None and budget != PAPER:
        most = composed(str(row.experiment), budget).config["trainer"]["gpus"]
        settings["trainer.gpus"] = min(row.workers, most)
    return settings


def composed_row(row: TableRow, budget: str = PAPER, words: tuple[str, ...] = ()) -> Composed:
    """Return the row's configuration; `words` are typed after the row's own."""
    return composed(str(row.experiment), budget, (*words_of(settings_at(row, budget)), *words))


def words_for(experiment: str, budget: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of `words` whose key the experiment has: a row without buckets has no bucket_scope."""
    known = composed(experiment, budget).config
    return tuple(word for word in words if value_of(known, word.partition("=")[0]) is not ABSENT)


def value_of(config: Config, key: str) -> Any:
    """Return what a dotted key holds; ABSENT where there is no such key."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return ABSENT
        node = node[part]
    return node


def experiment_word(experiment: str) -> str:
    group, _, row = experiment.rpartition("/")
    if not group:
        raise ConfigError(
            f"experiment {experiment}: type <paper>/<table>/<row>, as in powersgd/table4/rank_7"
        )
    return f"+experiment/{group}={row}"


def as_words(different: Differences) -> list[str]:
    """Return the first side of differences as it was typed.

    The numbers of a link follow the word that brings them; what only the other side has comes
    with its model or method.
    """
    links = [pair for key, pair in different.items() if key.startswith("network.")]
    words = [f"{key}={format_value(a)}" for key, (a, _) in different.items() if a != ABSENT]
    if any(before == ABSENT for before, _ in links):
        return ["network=none", *words]
    return ["network=emulated", *words] if any(now == ABSENT for _, now in links) else words
