"""The folders of runs, and the run that a few digits name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gcbench.core.errors import ConfigError, name_first, near

RESULTS = ("outputs",)
OF_A_RUN = {"start.json", "result.json"}  # a run has one of these from its start on
NAMED = 5  # runs that a refusal lists


def hash_of(place: str) -> str:
    """Return the hash at the end of a run's name; for a name that the user chose, the name."""
    name = Path(place).name
    found = re.search(r"-s\d+-([0-9a-f]{8})$", name)
    return found[1] if found else name


def find_folders(folders: Sequence[str | Path]) -> Iterator[Path]:
    """Yield the folders of all runs in and below `folders`, also of those without a result."""
    for folder in folders:
        for root, inside, files in os.walk(folder):
            inside.sort()
            if OF_A_RUN & {*files}:
                inside.clear()  # skips checkpoints and logs of the run
                yield Path(root)


def find_folder(typed: str, folders: Sequence[str | Path] = RESULTS) -> Path:
    """Return the folder of the run that was typed: its hash, or the begin of it, or its folder.

    Raises ConfigError if there is no such run, or more than one.
    """
    folder = Path(typed)
    if any((folder / name).exists() for name in OF_A_RUN):
        return folder
    every = list(find_folders(folders))
    hashes = {path: hash_of(str(path)) for path in every}
    found = [path for path, own in hashes.items() if typed in (own, path.name)]
    found = found or [path for path, own in hashes.items() if own.startswith(typed)]
    if len(found) == 1:
        return found[0]
    if found:
        several = name_first(list(map(str, found)), NAMED)
        raise ConfigError(f"{typed}: {len(found)} runs are called so; type one of {several}")
    where = ", ".join(map(str, folders))
    close = near(typed, hashes.values())
    advice = f"type {close}, or" if close else "see gcbench runs, or type"
    raise ConfigError(f"{typed}: there is no such run in {where}; {advice} the folder of a run")
