"""The errors that end a command in one sentence, which says what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from gcbench.identity import Config as Config

COMPOSITION_ERRORS = HydraException, OmegaConfBaseException, YAMLError
"""What composing a configuration raises for a mistake; `sentence_of` says it in our words."""


class ConfigError(ValueError):
    """A user's mistake; one sentence names the key, its value and what to type instead."""


class IdleKeyError(ConfigError):
    """A typed key that has no effect with the other keys."""


class RunFailed(RuntimeError):
    """A run has failed; its traceback, if there is one, has been shown."""


class RunDiverged(RunFailed):
    """A run has ended with a loss or parameters that are not finite."""


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
