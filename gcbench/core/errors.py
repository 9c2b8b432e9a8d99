"""The errors that say in one sentence what was meant, and names that are like a typed one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class ConfigError(ValueError):
    """A user's mistake; one sentence names the key, its value and what to type instead."""


class IdleKeyError(ConfigError):
    """A typed key that has no effect with the other keys."""


def folded(name: str) -> str:
    """Return a name without what people write differently: case, dashes, underscores, dots."""
    return re.sub(r"[-_.]", "", name.casefold())


def as_known(typed: str, known: Iterable[str]) -> str:
    """Return the only known name that is `typed` when folded, such as top_k for Top-K; or `typed`.

    A name that is known as it was typed is meant.
    """
    names = {*known}
    alike = [name for name in names if folded(name) == folded(typed)]
    return alike[0] if typed not in names and len(alike) == 1 else typed


def nearest(typed: str, known: Iterable[str], most: int = 3, like: float = 0.6) -> list[str]:
    """Return the names that may have been meant, the likeliest first; `like` of 1 means equal."""
    names: dict[str, list[str]] = {}
    for name in known:
        names.setdefault(folded(name), []).append(name)
    close = get_close_matches(folded(typed), names, n=most, cutoff=like)
    return [name for one in close for name in names[one]][:most]


def near(typed: str, known: Iterable[str], ending: str = "") -> str:
    """Return the names like `typed`, joined by "or"; an empty text if there are none."""
    return " or ".join(name + ending for name in nearest(typed, known, like=0.5))


def name_first(names: Sequence[str], count: int) -> str:
    """Return the first `count` names and the number of others, or all if it is at most one."""
    if len(names) <= count + 1:
        return ", ".join(names)
    return f"{', '.join(names[:count])} and {len(names) - count} more"
