"""The errors that end a command in one sentence, which says what was meant."""

from __future__ import annotations

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


def nearest(typed: str, known: Iterable[str], most: int = 3, like: float = 0.6) -> list[str]:
    """Return the names that may have been meant, the likeliest first; `like` of 1 means equal."""
    return get_close_matches(typed, [*known], n=most, cutoff=like)


def near(typed: str, known: Iterable[str], ending: str = "") -> str:
    """Return the names like `typed`, joined by "or"; an empty text if there are none."""
    return " or ".join(name + ending for name in nearest(typed, known, like=0.5))
