"""The errors that end a command in one sentence, and the type of a configuration."""

from __future__ import annotations

from gcbench.identity import Config as Config


class ConfigError(ValueError):
    """A user's mistake; one sentence names the key, its value and what to type instead."""


class IdleKeyError(ConfigError):
    """A typed key that has no effect with the other keys."""


class RunFailed(RuntimeError):
    """A run has failed; its traceback, if there is one, has been shown."""
