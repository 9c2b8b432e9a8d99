"""What was composed: plain values, in which references stand as they were written, and its source.

A reference, such as `bptt: ${oc.select:model.context,64}`, is resolved last: a budget may replace
what it names. OmegaConf resolves it, and sees nothing of the rest, as its containers are slow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from gcbench.core.conf import Config
from gcbench.core.method_files import bits_of, fill_compressor, to_floats_of_method

CHANGED_BY_BUDGETS = ("trainer", "optimizer", "schedule", "estimator")
REFERENCE = re.compile(r"\$\{(?:[\w.]+:)?(\w+)")  # and the first key that it may name


@dataclass(frozen=True)
class Composed:
    """A configuration that Hydra, or gcbench.runner.config.rows, has composed."""

    tree: Config  # without Hydra's node, and with None for the budget
    typed: Sequence[str]  # overrides
    choices: Mapping[str, Any]  # by group, as Hydra records them
    budget: Config | None = None  # the content of its file; None: there is none
    typed_for_hydra: Sequence[str] = ()
    folders: Sequence[str] = ()  # of --config-dir
    in_sweep: bool = False

    @staticmethod
    def of(given: DictConfig | Composed) -> Composed:
        if isinstance(given, Composed):
            return given
        hydra = given.hydra
        # As they were typed: a ${hydra.job.num} in one has no value yet.
        overrides: Any = OmegaConf.to_container(hydra.overrides)
        own = OmegaConf.masked_copy(given, [str(key) for key in given if key != "hydra"])
        tree: Any = OmegaConf.to_container(own)
        for group in CHANGED_BY_BUDGETS:
            if names_in(tree.get(group)):
                tree[group] = OmegaConf.to_container(given[group], resolve=True)
        gone = {"budget": None} if "budget" in tree else {}
        return Composed(
            tree | gone,
            overrides["task"],
            dict(hydra.runtime.choices),
            tree.get("budget"),
            overrides["hydra"],
            [
                f"file://{Path(source.path).absolute()}"
                for source in hydra.runtime.get("config_sources", ())
                if source.provider == "command-line"
            ],
            hydra.get("mode") is RunMode.MULTIRUN,
        )


def names_in(value: Any) -> set[str]:
    """Return what references in a value may name at the top, and "" if there is one, or `???`."""
    if isinstance(value, dict):
        return set().union(*map(names_in, value.values()))
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    if value == "???":
        return {""}
    if isinstance(value, str) and "${" in value:
        return {"", *REFERENCE.findall(value)}
    return set()


def resolve_references(tree: Config) -> Config:
    """Return a tree with what its references name; other nodes in it are those of the tree."""
    named = {key: names_in(value) for key, value in tree.items()}
    wanted = [key for key, names in named.items() if names]
    for key in wanted:
        wanted += [name for name in named if name in named[key] and name not in wanted]
    some = {key: tree[key] for key in wanted}
    # Rows of a table differ in what no reference names.
    asked = repr(some), frozenset(os.environ.items())
    if asked not in _resolved:
        _resolved[asked] = OmegaConf.to_container(
            OmegaConf.create(some), resolve=True, throw_on_missing=True
        )
    return {**tree, **deepcopy(_resolved[asked])}


_resolved: dict[tuple[str, frozenset[Any]], Any] = {}


def fill(tree: Config) -> Config:
    """Return the values of a configuration, with a compressor that has its method's keys."""
    config = resolve_references(tree)
    fill_compressor(config)
    to_floats_of_method(config)
    return config


def settle_bits(tree: Config, typed: Collection[str]) -> None:
    """Set `bits` to the number that the typed `levels` need: see `bits_of`."""
    # Levels that follow from bits, as they are a reference, say nothing of them.
    if (bits := bits_of(tree, typed)) is not None:
        tree["bits"] = bits
