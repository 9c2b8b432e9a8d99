"""A command line as a checked configuration, for callers that have no Hydra application."""

from __future__ import annotations

from collections.abc import Sequence

from gcbench.config.compose import compose_overrides
from gcbench.config.errors import COMPOSITION_ERRORS, Config, ConfigError
from gcbench.config.resolve import resolve
from gcbench.config.run_name import run_directory
from gcbench.config.sentences import sentence_of


def resolve_overrides(overrides: Sequence[str]) -> tuple[Config, str]:
    """Return the checked configuration of a command line, and the directory of its run.

    Raises ConfigError in place of all errors of Hydra and OmegaConf.
    """
    try:
        composed = compose_overrides(overrides)
        return resolve(composed), run_directory(composed)
    except COMPOSITION_ERRORS as error:
        raise ConfigError(sentence_of(error, overrides=overrides)) from error


def resolve_method(overrides: Sequence[str], config_dir: str | None = None) -> Config:
    """Return the checked `compressor` node of a command line like `compressor=qsgd bits=2`.

    Files in `config_dir` count like those in conf/.
    """
    node: Config = resolve(compose_overrides(overrides, config_dir))["compressor"]
    return node
