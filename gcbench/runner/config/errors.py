"""The errors that end a command, and what Hydra, which passes nothing on, would lose of them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

COMPOSITION_ERRORS = HydraException, OmegaConfBaseException, YAMLError
"""What composing a configuration raises for a mistake; `sentence_of` says it in our words."""


class RunFailed(RuntimeError):
    """A run has failed; its traceback, if there is one, has been shown."""


class RunDiverged(RunFailed):
    """A run has ended with a loss or parameters that are not finite."""


@dataclass
class Outcome:
    """Errors that runs left for the end of a command, and folders that Hydra made for it."""

    deferred: list[Exception] = field(default_factory=list)
    """errors of a single run, raised at the end: Hydra would print its own line first"""
    listed: list[Exception] = field(default_factory=list)
    """errors that the list of failures has told; because of them the command exits with status 1"""
    missing: Path | None = None
    """the outermost folder that was missing when the command began, and that Hydra makes"""

    def note_missing(self, outputs: Path) -> None:
        absent = [path for path in (outputs, *outputs.parents) if not path.exists()]
        self.missing = absent[-1] if absent else None

    def remove_made_folders(self) -> None:
        """Remove the folders that a refused command has made, where they hold no run."""
        for folder, _, _ in os.walk(self.missing, topdown=False) if self.missing else ():
            with suppress(OSError):
                if os.listdir(folder) == ["multirun.yaml"]:  # Hydra's, of a sweep
                    Path(folder, "multirun.yaml").unlink()
                os.rmdir(folder)

    def error(self) -> Exception | None:
        """Return the error with which the command ends, and forget it; None for a good end."""
        errors = self.deferred or self.listed
        first = errors[0] if errors else None
        self.deferred.clear()
        self.listed.clear()
        return first


outcome = Outcome()  # of the command of this process: Hydra makes the callback of sweeps itself
