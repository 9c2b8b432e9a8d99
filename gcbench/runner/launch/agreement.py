"""Checks that all processes of a run have the same configuration and the same code.

They may differ if the processes were started from several shells, nodes or machines, and then their
replicas may drift apart.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import gcbench
from gcbench.core.errors import ConfigError, name_first
from gcbench.runner.control import Control
from gcbench.runner.differences import value_of
from gcbench.runner.identity import Flat, leaves, relevant_config
from gcbench.runner.launch.instantiate import import_targets
from gcbench.runner.records.environment import version_of
from gcbench.runner.settings.config import RunConfig

# Keys that may differ between processes, as long as these have the same directory, whose name
# contains a hash of them.
ITS_OWN = {"trainer.launcher", "trainer.threads"}
DIRECTORY = "the run's directory"


def refuse_different_configs(config: RunConfig, directory: Path, control: Control) -> None:
    """Raise ConfigError in all processes, naming the keys, if their configurations differ.

    Every process must call this before any other exchange.
    """
    places = {"name": config.name, "outputs": config.outputs, "directory": config.directory}
    compared = {**relevant_config(config.as_dict(), ()), **places}
    # A machine may have the shared folder under another path.
    here = {**leaves(compared), DIRECTORY: directory.name}
    differing = describe_differences(control.gather(here))
    if differing.keys() <= ITS_OWN:
        return
    if causes := differing.keys() - ITS_OWN - {DIRECTORY}:
        differing = {key: differing[key] for key in differing if key in causes}
    listed = "; ".join(f"{key} is {values}" for key, values in differing.items())
    or_directory = ", or one directory=DIR" if DIRECTORY in differing else ""
    raise ConfigError(
        f"the processes were given different configurations: {listed}; type the same overrides "
        f"for each{or_directory}"
    )


def describe_differences(by_process: Sequence[Flat]) -> dict[str, str]:
    """Return the keys whose values differ, in order, each with its values in two processes."""
    keys = sorted({key for flat in by_process for key in flat})
    values = {key: [value_of(flat, key) for flat in by_process] for key in keys}
    return {key: _by_process(each) for key, each in values.items() if len({*map(repr, each)}) > 1}


def _by_process(values: list[Any]) -> str:
    # By their texts, as a NaN is not equal to itself.
    other = next(rank for rank, value in enumerate(values) if repr(value) != repr(values[0]))
    return f"{values[0]} in process 0 and {values[other]} in process {other}"


NAMED = 2  # differences that an error names
LIBRARIES = {"site-packages", "dist-packages"}  # folders of installed packages


def refuse_different_code(config: RunConfig, control: Control) -> None:
    """Raise ConfigError in all processes, naming packages and files, if their code differs.

    It compares the versions of PyTorch and gcbench, the sources of gcbench, and the user's modules.
    """
    ours = {"torch": str(torch.__version__), "gcbench": version_of("gcbench"), **_sources()}
    everyone = control.gather([ours, _modules(config)])
    # A module that some processes have not imported says nothing.
    shared = set.intersection(*(set(modules) for _, modules in everyone))
    by_process: list[Flat] = [
        {**ours, **{name: modules[name] for name in shared}} for ours, modules in everyone
    ]
    if differing := describe_differences(by_process):
        problems = name_first([f"{key} is {values}" for key, values in differing.items()], NAMED)
        raise ConfigError(f"the processes run different code: {problems}; install the same on each")


def _sources() -> dict[str, str]:
    """Return the digest of every source file of gcbench."""
    package = Path(gcbench.__file__).parent
    files = sorted(file for ending in ("py", "cpp") for file in package.rglob(f"*.{ending}"))
    return {f"the source of gcbench/{file.relative_to(package)}": _digest(file) for file in files}


def _modules(config: RunConfig) -> dict[str, str]:
    """Return the digest of every imported module that is neither installed nor Python's own."""
    import_targets(config.as_dict())
    digests = {}
    for name, file in _imported():
        with suppress(OSError):  # it was not imported from a file of its own
            digests[f"the source of {name}"] = _digest(Path(file))
    return digests


def _imported() -> Iterator[tuple[str, str]]:
    standard = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not file or file.startswith(standard) or name.partition(".")[0] == gcbench.__name__:
            continue
        if not LIBRARIES & {*Path(file).parts}:
            yield name, file


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:8]
