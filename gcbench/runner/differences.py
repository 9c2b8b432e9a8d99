"""How two configurations differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gcbench.core.fields import format_value
from gcbench.runner.identity import (
    ABSENT,
    NEUTRAL,
    Config,
    Flat,
    _flatten,
    finite,
    relevant_config,
)
from gcbench.runner.settings.open import is_ours

Differences = dict[str, tuple[Any, Any]]  # dotted key to (before, now)


def differences(before: Config, now: Config, ignored: Collection[str]) -> Differences:
    """Return the differences of two configurations, without `ignored` trainer keys."""
    return flat_differences(*(_flatten(relevant_config(one, ignored)) for one in (before, now)))


def flat_differences(before: Flat, now: Flat) -> Differences:
    """Return the dotted keys that differ, each with both values."""
    pairs = {key: (value_of(before, key), value_of(now, key)) for key in {**before, **now}}
    # A kept configuration has None for NaN.
    return {key: (a, b) for key, (a, b) in pairs.items() if finite(a) != finite(b)}


def format_differences(different: Mapping[str, tuple[Any, Any]]) -> str:
    """Return differences as text, for example `bits=4 -> 2, seed=1 -> 2`."""
    return ", ".join(
        f"{key}={format_value(before)} -> {format_value(now)}"
        for key, (before, now) in different.items()
    )


def value_of(flat: Flat, key: str) -> Any:
    """Return the value of a dotted key; if it is missing, that in NEUTRAL, or else ABSENT."""
    node, _, name = key.rpartition(".")
    ours = is_ours(flat.get(f"{node}._target_"))
    return flat.get(key, NEUTRAL.get(name, ABSENT) if ours else ABSENT)
