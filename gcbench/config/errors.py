"""The errors that end a command in one sentence, and the type of a configuration."""

from __future__ import annotations

from gcbench.identity import Config as Config


class ConfigError(ValueError):
    """A mistake of the user's, in one sentence that names key, value and what to type instead."""


class IdleKeyError(ConfigError):
    """A typed key that means nothing beside the others."""


class RunFailed(RuntimeError):
    """A run that did not end well; its traceback, where there is one, has been shown."""
