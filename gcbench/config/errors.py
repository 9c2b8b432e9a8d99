"""The errors that end a command in one sentence, which says what was meant."""

from __future__ import annotations

from collections.abc import Collection
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


def near(typed: str, known: Collection[str], ending: str = "") -> str:
    """Return the names like `typed`, joined by "or"; an empty text if there are none."""
    return " or ".join(
        name + ending for name in get_close_matches(typed, list(known), n=3, cutoff=0.5)
    )
