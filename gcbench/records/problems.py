"""Sentences about what is wrong with the content of a file from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError


def first_problem(error: ValidationError) -> str:
    """Return the first thing that is missing or has another type."""
    problem = error.errors()[0]
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing" or problem["input"] is None:
        return f"without {key}"
    return f"its {key} is {problem['input']!r:.60}"


def refuse_odd_targets(config: Any) -> None:
    """Raise ValueError for a configuration with a `_target_` that is no text."""
    for key, target in _targets("config", config):
        if not isinstance(target, str):
            raise ValueError(f"its {key} is {target!r:.60}")


def _targets(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield all `_target_` in a configuration, with their keys."""
    if isinstance(node, dict):
        for name, part in node.items():
            if name == "_target_":
                yield f"{key}.{name}", part
            yield from _targets(f"{key}.{name}", part)
    elif isinstance(node, list):
        for i, part in enumerate(node):
            yield from _targets(f"{key}.{i}", part)
