"""The commands `gcbench runs rm` and `gcbench runs where`, on the folders of runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from gcbench.core.errors import ConfigError
from gcbench.runner.arguments import Arguments, read_arguments
from gcbench.runner.launch.lock import held
from gcbench.runner.records.folders import RESULTS, find_folder


class Named(Arguments):
    """The arguments that name runs by their hashes or their folders."""

    results: tuple[str, ...] = RESULTS
    """folders with runs, separated by commas"""

    def check(self) -> None:
        """Raise ConfigError if no run was named."""
        if not self.plain:
            raise ConfigError("nothing was named: type the hash of a run, as gcbench runs has it")

    def folders(self) -> list[Path]:
        """Return the folders of the runs that were named, each once."""
        every = [find_folder(one, self.results) for one in self.plain]
        return [*dict.fromkeys(path.absolute() for path in every)]


class Where(Named):
    """Print the folder of a run, and nothing else."""

    usage = "gcbench runs where HASH ... [results=FOLDER]"
    examples = "\ncd $(gcbench runs where 74c51725)\n"


class Remove(Named):
    """Remove runs with all of their files, after asking. One that is running is refused."""

    usage = "gcbench runs rm HASH ... [yes=true] [results=FOLDER]"
    examples = "\ngcbench runs rm 74c51725 5ba5748e\n"

    yes: bool = False
    """true: does not ask"""


def where(typed: Sequence[str]) -> None:
    """Print the folders of runs, one a line."""
    for folder in read_arguments(Where, typed).folders():
        print(folder)


def remove(typed: Sequence[str]) -> None:
    """Remove the folders of runs; raise ConfigError for one that is running, before any is gone."""
    arguments = read_arguments(Remove, typed)
    folders = arguments.folders()
    with ExitStack() as locks:
        for folder in folders:
            if who := locks.enter_context(held(folder)):
                raise ConfigError(
                    f"{folder} is being run by {who}; stop it first, or leave this run out"
                )
        if not arguments.yes and not _agreed(folders):
            print("nothing was removed")
            return
        for folder in folders:
            shutil.rmtree(folder)
            print(f"removed {folder}")
            _remove_empty(folder.parent, [Path(one).absolute() for one in arguments.results])


def _agreed(folders: Sequence[Path]) -> bool:
    """Ask whether to remove these folders; raise ConfigError if there is nobody to ask."""
    if not sys.stdin.isatty():
        raise ConfigError("yes=false: there is no terminal on which to ask; type yes=true, too")
    for folder in folders:
        size = sum(path.lstat().st_size for path in folder.rglob("*")) / 2**20
        print(f"{folder}: {size:,.1f} MiB")
    runs = "this run" if len(folders) == 1 else f"these {len(folders)} runs"
    with suppress(EOFError):
        return input(f"remove {runs}? [y/N] ").strip().lower() in ("y", "yes")
    return False


def _remove_empty(folder: Path, results: Sequence[Path]) -> None:
    """Remove the folders of an experiment that hold no more runs, up to those with results."""
    with suppress(OSError):  # others are there
        while any(one in folder.parents for one in results):
            folder.rmdir()
            folder = folder.parent
