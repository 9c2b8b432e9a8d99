"""Where a run took place: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "torchvision", "numpy", "hydra-core", "omegaconf", "wandb", "gcbench")


def environment(git: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return `versions`, `git` (of now, unless it is given) and `machine`, as result.json has them; null: not to be known."""
    return {"versions": _versions(), "git": git or checked_out(), "machine": _machine()}


def _versions() -> dict[str, str | None]:
    return {
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def checked_out() -> dict[str, Any]:
    """Return the commit of the checkout that gcbench is imported from, and whether files differ from it (`dirty`).

    An installed gcbench says nothing, the project around it might.
    """
    for directory in (Path(__file__).resolve().parent, Path.cwd()):
        commit = _git_says(directory, "rev-parse", "HEAD")
        if commit is not None:
            changes = _git_says(directory, "status", "--porcelain", "--untracked-files=no")
            return {"commit": commit, "dirty": None if changes is None else bool(changes)}
    return {"commit": None, "dirty": None}


def _git_says(directory: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, no repository, no commit yet
        return None
    return done.stdout.strip()


def _machine() -> dict[str, Any]:
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "hostname": platform.node(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),  # the instructions that torch uses, as in AVX2
        "aten_cpu_capability": os.environ.get(
            "ATEN_CPU_CAPABILITY"
        ),  # what somebody has told it to use
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(index) for index in gpus],
    }


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or None
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None
    )
