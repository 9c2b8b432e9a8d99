"""Processes that were started with different arguments or code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import processes
import torch
from gloo_pool import Process

import gcbench
from gcbench.core.errors import ConfigError
from gcbench.runner.launch.agreement import refuse_different_code, refuse_different_configs
from gcbench.runner.settings.config import RunConfig


def gcbench_with_own_modules(*arguments: str) -> None:
    """Run `gcbench` in a folder of this rank, with the user's modules."""
    os.chdir(os.environ["RANK"])
    processes.gcbench(*arguments)


def compare(process: Process, started: list[tuple[RunConfig, str]]) -> str | None:
    """Return the error of this process, which was started with a configuration and a directory."""
    config, directory = started[process.rank]
    try:
        refuse_different_configs(config, Path(directory), process.control)
    except ConfigError as error:
        return str(error)
    return None


def compare_code(
    process: Process, config: RunConfig, torch_versions: list[str], folders: list[str]
) -> str | None:
    """Return the error of this process, whose PyTorch, gcbench and modules are those of its rank.

    A folder holds a package `gcbench` and the user's modules.
    """
    version, folder = torch_versions[process.rank], Path(folders[process.rank])
    before: dict[str, Any] = dict(sys.modules)
    with (
        patch.object(torch, "__version__", version),
        patch.object(gcbench, "__file__", str(folder / "gcbench" / "__init__.py")),
        patch.object(sys, "path", [str(folder), *sys.path]),
    ):
        try:
            refuse_different_code(config, process.control)
        except ConfigError as error:
            return str(error)
        finally:
            for name in sys.modules.keys() - before.keys():
                del sys.modules[name]
    return None
