"""Configurations side by side: what of them counts, and where two differ."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

from gcbench.config import Config, ConfigError, compose_words, register, resolve
from gcbench.config.names import (
    ABSENT,
    BOOKKEEPING,
    EXECUTION,
    leaves,
    what_matters,
    without_copies,
)
from gcbench.knobs import spell

PAPER = "paper"
Flat = dict[str, Any]
Difference = dict[str, tuple[Any, Any]]  # key to (theirs, ours)


class Composed(NamedTuple):
    """An experiment's file with a budget applied."""

    config: Config
    choices: dict[str, str]
    flat: Flat


def composed(experiment: str, budget: str = PAPER, words: tuple[str, ...] = ()) -> Composed:
    """Of `+experiment/<paper>/<table>=<row> budget=... words`, made once. Raises what Hydra and the checks raise."""
    return _composed(experiment, budget, words)


@cache
def _composed(experiment: str, budget: str, words: tuple[str, ...]) -> Composed:
    tree = deepcopy(_tree(experiment, words))
    tree.budget = _budget_node(budget)
    tree.hydra.runtime.choices["budget"] = budget
    config = json.loads(json.dumps(resolve(tree)))
    return Composed(config, config["choices"], flat(config))


@cache
def _tree(experiment: str, words: tuple[str, ...]) -> Any:
    register()
    return compose_words([experiment_word(experiment), *words])


@cache
def _budget_node(budget: str) -> Any:
    """Composing once for all budgets takes a third of the time."""
    register()
    return compose_words([f"budget={budget}"]).budget


def words_for(experiment: str, budget: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of `words` whose key the experiment has: a row without buckets has no bucket_scope."""
    known = composed(experiment, budget).config
    return tuple(word for word in words if _has(known, word.partition("=")[0]))


def _has(config: Config, key: str) -> bool:
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True


def experiment_word(experiment: str) -> str:
    group, _, row = experiment.rpartition("/")
    if not group:
        raise ConfigError(
            f"experiment {experiment}: type <paper>/<table>/<row>, as in powersgd/table4/rank_7"
        )
    return f"+experiment/{group}={row}"


def flat(config: Config) -> Flat:
    """Dotted keys of what changes numbers; without the seed, and without how and where the run executed."""
    kept = what_matters(config, EXECUTION | BOOKKEEPING)
    return dict(leaves({k: v for k, v in kept.items() if k != "seed"}, ""))


def with_later_keys(kept: Flat) -> Flat:
    """Return the keys of a kept result, and those that came later with what gcbench did before it had them."""
    later: Flat = {}
    for key in kept:
        prefix, _, last = key.rpartition(".")
        if key == "bucket_size":
            later["bucket_scope"] = "tensor"
        elif last == "bucket_size":  # an argument of a method, around which is `build`
            later[f"{prefix.removesuffix('.method')}.bucket_scope"] = "tensor"
        elif last == "warmup_epochs":
            later[f"{prefix}.warmup_start"] = None
    if str(kept.get("compressor.method._target_")).endswith(".Signum"):
        later |= dict.fromkeys(("momentum_start", "compressor.method.momentum_start"), "zero")
    return later | kept


def difference(theirs: Flat, ours: Flat) -> Difference:
    """Where `theirs` differs. A key that only `ours` has is one that an older gcbench did not know, and no difference."""
    return {k: (a, ours.get(k, ABSENT)) for k, a in theirs.items() if k not in ours or a != ours[k]}


def as_words(different: Difference) -> list[str]:
    """Of the first side, as they were typed; the numbers of a link follow the word that brings them."""
    words = [
        f"{key}={spell(different[key][0])}" for key in without_copies(different) if key != "network"
    ]
    if "network" in different:
        return ["network=none", *words]
    link = any(
        key.startswith("network.") and ours == ABSENT for key, (_, ours) in different.items()
    )
    return ["network=emulated", *words] if link else words
