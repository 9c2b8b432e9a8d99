"""Rows of tables composed from plain values, as Hydra composes them from a command line.

Hydra takes 0.2 to 0.5 s for a row, nearly all of it to read and merge files that are the same for
all rows; there are some 700 rows. test_resolved.py composes the same rows by Hydra.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from gcbench.core.conf import Config, conf_directory, read_yaml
from gcbench.core.method_files import merge, read_file
from gcbench.runner.conf_files import file_of
from gcbench.runner.config.choices import GROUPS, node_of, row_names, runs_in, table_directory
from gcbench.runner.config.composed import Composed
from gcbench.runner.config.keys import read_knobs
from gcbench.runner.settings.config import SCHEMAS
from gcbench.runner.settings.groups import RunSettings


def merge_row(experiment: str, overrides: Sequence[str]) -> Composed | None:
    """Return what Hydra composes for a row and overrides of its keys and choices.

    Returns None where only Hydra knows: a row that is not there, an override of a key that the row
    lacks, of `_target_` or of a whole node.
    """
    table, _, row = experiment.rpartition("/")
    if row not in row_names(table):
        return None
    typed = read_knobs(overrides)
    chosen = {key: value for key, value in typed.items() if key in GROUPS}
    if "budget" in typed or not all(isinstance(choice, str) for choice in chosen.values()):
        return None
    choices, layers = dict(chosen), []
    for own, keys in _layers(node_of(runs_in(table_directory() / f"{table}.yaml")[row])):
        choices = {**own, **choices}  # what is included yields to what includes it
        layers.append(keys)
    tree: Config = {}
    for layer in (*_main_layers(choices), *reversed(layers)):
        merge(tree, layer)
    for key, value in typed.items():
        if key not in chosen and not _replace(tree, key, value):
            return None
    typed_row = f"+experiment/{table}={row}"
    chosen = {**choices, f"experiment/{table}": row}
    return Composed(tree | {"budget": None}, [typed_row, *overrides], chosen, budget={})


def _layers(node: Config) -> Iterator[tuple[dict[str, str], Config]]:
    """Yield the choices and the keys of a row, then those of what its list of defaults includes."""
    entries = node.get("defaults", [])
    overrides = [entry for entry in entries if isinstance(entry, dict)]
    choices = {
        group.removeprefix("override /"): choice
        for entry in overrides
        for group, choice in entry.items()
    }
    yield choices, {key: _plain(value) for key, value in node.items() if key != "defaults"}
    included = [entry for entry in entries if isinstance(entry, str) and entry != "_self_"]
    for entry in reversed(included):  # the keys and choices of the last one win
        yield from _layers(_included(entry))


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _included(entry: str) -> Config:
    kind, _, name = entry.removeprefix("/").partition("/")
    if kind == "experiment":
        table, _, row = name.rpartition("/")
        return node_of(runs_in(table_directory() / f"{table}.yaml")[row])
    return _setting(name)


@cache
def _setting(name: str) -> Config:
    return dict(read_yaml(conf_directory() / "setting" / f"{name}.yaml"))


def _main_layers(choices: dict[str, str]) -> Iterator[Config]:
    """Yield what config.yaml includes, with these choices, to which its own are added."""
    main = _main()
    for entry in main["defaults"]:
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            if not group.startswith("override "):
                choices.setdefault(group, choice)
                yield _group(group, choices[group])
        if entry == "run_keys":
            yield RunSettings().model_dump()
    yield {key: value for key, value in main.items() if key not in ("defaults", "hydra")}


@cache
def _main() -> Config:
    return dict(read_yaml(conf_directory() / "config.yaml"))


@cache
def _group(group: str, choice: str) -> Config:
    """Return what the file of a choice adds; nothing of a budget, which is applied later."""
    if group == "budget":
        return {group: {}}
    path = file_of(group, choice)
    if group == "compressor":  # whose keys stand at the top
        return read_file(path)
    node = dict(read_yaml(path))
    if "schema" in node.pop("defaults", []):
        node = {**SCHEMAS[group]().model_dump(), **node}
    return {group: node}


def _replace(tree: Config, key: str, value: Any) -> bool:
    """Set a dotted key that the tree has, in place; return False if it lacks it, or is a node."""
    *groups, name = key.split(".")
    node: Any = tree
    for group in groups:
        node = node.get(group) if isinstance(node, dict) else None
    if not isinstance(node, dict) or name not in node or isinstance(node[name], dict):
        return False
    node[name] = value
    return not name.startswith("_")
