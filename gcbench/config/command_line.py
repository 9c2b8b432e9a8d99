"""A command line as a checked configuration, for callers that have no Hydra application."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from gcbench.config.compose import compose_overrides
from gcbench.config.errors import Config, ConfigError
from gcbench.config.register import register
from gcbench.config.resolve import resolve
from gcbench.config.run_name import run_directory
from gcbench.config.sentences import sentence_of


def resolve_overrides(overrides: Sequence[str]) -> tuple[Config, str]:
    """Return the checked configuration of a command line, and the directory of its run.

    Raises ConfigError in place of all errors of Hydra and OmegaConf.
    """
    register()
    try:
        composed = compose_overrides(overrides)
        return resolve(composed), run_directory(composed)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(sentence_of(error, overrides=overrides)) from error
