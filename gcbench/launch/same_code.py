"""A check that all processes of a run have the same code.

It may differ if they are on several machines, and then their replicas may drift apart.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

import gcbench
from gcbench.comm.control import Control
from gcbench.config import Config, ConfigError
from gcbench.console import name_first
from gcbench.identity import Flat
from gcbench.launch.instantiate import import_targets
from gcbench.launch.same_config import describe_differences
from gcbench.records.environment import version_of

NAMED = 2  # differences that an error names
LIBRARIES = {"site-packages", "dist-packages"}  # folders of installed packages


def refuse_different_code(config: Config, control: Control) -> None:
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


def _modules(config: Config) -> dict[str, str]:
    """Return the digest of every imported module that is neither installed nor Python's own."""
    import_targets(config)
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
