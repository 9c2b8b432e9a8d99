"""The errors that end a command in one sentence, and the type of a configuration."""

from __future__ import annotations

import re
from typing import Any

Config = dict[str, Any]


class ConfigError(ValueError):
    """A mistake of the user's, in one sentence that names key, value and what to type instead."""


class RunFailed(RuntimeError):
    """A run that did not end well; its traceback, where there is one, has been shown."""


def sentence_of(error: BaseException) -> str:
    """Return what to say of an error that ends a command: ours, Hydra's, or a file's."""
    if isinstance(error, OSError) and error.filename:
        return (
            f"{error.filename}: {error.strerror}; type outputs=DIR (or data.root=DIR) with a "
            "folder that can be used"
        )
    if mistake := _config_error_in(error):
        return str(mistake)
    cause = "" if isinstance(error, ConfigError) else str(error.__cause__ or "")
    lines = [*str(error).splitlines(), *(cause.splitlines() if cause not in str(error) else [])]
    said_by_omegaconf = ("object_type=", "full_key: hydra.")
    text = "\n".join(
        line for line in lines if line and not any(word in line for word in said_by_omegaconf)
    )
    # This prefix comes from the interpolation in the run's name.
    text = text.removeprefix("ConfigError raised while resolving interpolation: ")
    # For a choice that does not exist, the choices that do are named before the search path.
    text = text.partition("\nConfig search path")[0]
    if unknown := re.match(r"Could not override '(.+?)'", text):
        return (
            f"{unknown[1]}: no such key with these choices (a compressor's knobs exist only where "
            "they mean something); type gcbench --help or gcbench --cfg job to see the keys"
        )
    return text


def _config_error_in(error: BaseException | None) -> ConfigError | None:
    """Return the mistake in a resolver of ours, around which OmegaConf has put its own errors."""
    while error is not None and not isinstance(error, ConfigError):
        error = error.__cause__ or error.__context__
    return error
