"""The errors that end a command."""

from __future__ import annotations

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

COMPOSITION_ERRORS = HydraException, OmegaConfBaseException, YAMLError
"""What composing a configuration raises for a mistake; `sentence_of` says it in our words."""


class RunFailed(RuntimeError):
    """A run has failed; its traceback, if there is one, has been shown."""


class RunDiverged(RunFailed):
    """A run has ended with a loss or parameters that are not finite."""
