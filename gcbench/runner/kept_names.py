"""Names of classes and keys that changed after results were kept: the table of first and today's.

Results keep the names of their day, and a run's identity is a hash of the first ones, so that a
class may move, or a key get a better name, and no kept run is lost.
"""

from __future__ import annotations

from typing import Any

# Name or beginning of a `_target_` today, and what it was at first.
CLASSES = {
    "gcbench.build": "gcbench.compressors.build",
    "gcbench.core.methods.acpsgd.UnbiasedLowRank": (
        "gcbench.compressors.unbiased_lowrank.UnbiasedLowRank"
    ),
    "gcbench.core.methods.dion.Dion2": "gcbench.compressors.dion2.Dion2",
    "gcbench.core.methods.entropy_coded.Exponents": "gcbench.compressors.exponents.Exponents",
    "gcbench.core.methods.orq.BinGradB": "gcbench.compressors.bingrad.BinGradB",
    "gcbench.core.methods.orq.BinGradPB": "gcbench.compressors.bingrad.BinGradPB",
    "gcbench.core.methods.orq.EvenLevels": "gcbench.compressors.even_levels.EvenLevels",
    "gcbench.core.methods.orq.Linear": "gcbench.compressors.linear.Linear",
    "gcbench.core.methods.random_sparse.GlobalRandK": (
        "gcbench.compressors.global_randk.GlobalRandK"
    ),
    "gcbench.core.methods.": "gcbench.compressors.",
    "gcbench.runner.data.": "gcbench.data.",
    "gcbench.runner.models.": "gcbench.models.",
    "gcbench.runner.train.": "gcbench.train.",
}
KEYS = {"trainer": {"workers": "gpus"}}  # of a group: the key today, and what it was at first


def with_first_names(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration, or a part of one, as the first gcbench would have named it."""
    return _renamed(config, CLASSES, KEYS)


def with_todays_names(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration that was kept with the names of today.

    By way of the first names, as a class may have moved more than once.
    """
    keys = {group: _turned(names) for group, names in KEYS.items()}
    return _renamed(with_first_names(config), _turned(CLASSES), keys)


def _turned(table: dict[str, str]) -> dict[str, str]:
    return {after: before for before, after in table.items()}


def _renamed(
    config: dict[str, Any], classes: dict[str, str], keys: dict[str, dict[str, str]]
) -> dict[str, Any]:
    groups = {
        group: {names.get(key, key): value for key, value in config[group].items()}
        for group, names in keys.items()
        if isinstance(config.get(group), dict)
    }
    renamed: dict[str, Any] = _with_classes({**config, **groups}, classes)
    return renamed


def _with_classes(node: Any, table: dict[str, str]) -> Any:
    if isinstance(node, dict):
        return {
            key: _rename(value, table)
            if key == "_target_"
            else _with_classes(value, table)
            if isinstance(value, dict | list)
            else value
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_with_classes(entry, table) for entry in node]
    return node


def _rename(name: Any, table: dict[str, str]) -> Any:
    for before, after in table.items() if isinstance(name, str) else ():
        if name == before or (before.endswith(".") and name.startswith(before)):
            return after + name.removeprefix(before)
    return name
