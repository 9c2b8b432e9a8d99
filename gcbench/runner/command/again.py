"""The command `gcbench again`: a run once more, with what was typed for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from gcbench.core.errors import ConfigError
from gcbench.runner.arguments import Arguments, read_arguments
from gcbench.runner.command.hydra_run import run, start_hydra
from gcbench.runner.config.compose import resolve_overrides
from gcbench.runner.config.typed import read_run_file, to_overrides
from gcbench.runner.differences import differences, format_differences
from gcbench.runner.identity import BOOKKEEPING, EXECUTION
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.folders import RESULTS, find_folder
from gcbench.runner.settings.config import RunConfig

log = logging.getLogger("gcbench")


class Again(Arguments):
    """Type the command of a run again, with more after it: a finished run is shown, an interrupted
    one continues, and another key is another run. A run is named by the eight digits at the end of
    its folder, which gcbench runs prints, or by its folder.
    """

    usage = "gcbench again HASH|FOLDER [key=value ...] [-m] [results=FOLDER]"
    examples = """
gcbench again 74c51725                 continues it, if it was interrupted
gcbench again 74c51725 rerun=true      runs it again
gcbench again 74c51725 bits=2          the same with another key
gcbench again 74c51725 seed=1,2,3 -m   a sweep
gcbench --config FILE                  reads config.yaml of a run, or one of yours
"""

    results: tuple[str, ...] = RESULTS
    """folders with runs, separated by commas, in which the hash is looked for"""


def again(typed: Sequence[str]) -> None:
    """Start a run with the config.yaml of another; raise ConfigError if there is none."""
    first = typed[0] if typed else ""
    if {"-h", "--help"} & {*typed}:
        read_arguments(Again, ["--help"])
    if not first or first.startswith("-") or "=" in first:
        raise ConfigError(
            f"{first or 'nothing was named'}: type a run first, as in gcbench again 74c51725; "
            "gcbench runs prints these"
        )
    results = [one for one in typed[1:] if one.startswith("results=")]
    where = read_arguments(Again, [first, *results])
    files = RunFiles(find_folder(first, where.results))
    if not files.config.exists():
        raise ConfigError(
            f"{first}: {files.directory} has no config.yaml, as an older gcbench made it; type "
            "its command"
        )
    config, directory = resolve_overrides(read_run_file(str(files.config)))
    _warn_of_new_defaults(files, config)
    others = [one for one in typed[1:] if one not in results]
    if not any(one.startswith(("outputs=", "directory=")) for one in others):
        others += _place(files.directory, config, directory)
    start_hydra(run, "config", [f"--config={files.config}", *others])


def _warn_of_new_defaults(files: RunFiles, now: RunConfig) -> None:
    """Warn if what was typed for a run makes another one today, as gcbench has other defaults."""
    before = files.read_start()
    if before is None:
        return
    if differs := differences(before["config"], now.as_dict(), BOOKKEEPING | EXECUTION):
        log.warning(
            "%s: its command makes another run today (%s); type the first values to have it as "
            "it was",
            files.directory,
            format_differences(differs),
        )


def _place(folder: Path, config: RunConfig, directory: str) -> list[str]:
    """Return what to type to have the run where it is, from another working directory."""
    if config.directory:
        is_here = Path(directory).absolute() == folder.absolute()
        return [] if is_here else to_overrides({"directory": folder.absolute()})
    name = str(Path(directory).relative_to(config.outputs))
    root = Path(str(folder.absolute()).removesuffix(f"/{name}"))
    is_here = root in (Path(config.outputs).absolute(), folder.absolute())
    return [] if is_here else to_overrides({"outputs": root})
