"""Where classes were when results were kept, and where they are: the table for their `_target_`s.

Results keep the names of their day, and a run's identity is a hash of the first ones, so that a
class may move and no kept run is lost.
"""

from __future__ import annotations

from typing import Any

# Name or beginning of a name today, and what it was at first.
FIRST = {
    "gcbench.build": "gcbench.compressors.build",
    "gcbench.core.methods.": "gcbench.compressors.",
    "gcbench.runner.data.": "gcbench.data.",
    "gcbench.runner.models.": "gcbench.models.",
    "gcbench.runner.train.": "gcbench.train.",
}
TODAY = {first: today for today, first in FIRST.items()}


def with_first_paths(config: Any) -> Any:
    """Return a configuration, or a part of one, whose classes have their first names."""
    return _renamed(config, FIRST)


def with_todays_paths(config: Any) -> Any:
    """Return a configuration, or a part of one, whose classes have the names of today."""
    return _renamed(config, TODAY)


def _renamed(node: Any, table: dict[str, str]) -> Any:
    if isinstance(node, dict):
        return {
            key: _rename(value, table) if key == "_target_" else _renamed(value, table)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_renamed(entry, table) for entry in node]
    return node


def _rename(name: Any, table: dict[str, str]) -> Any:
    for before, after in table.items() if isinstance(name, str) else ():
        if name == before or (before.endswith(".") and name.startswith(before)):
            return after + name.removeprefix(before)
    return name
