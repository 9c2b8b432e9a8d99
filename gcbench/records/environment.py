"""Where a run took place: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from gcbench.records.schema import Environment, Git, Machine

PACKAGES = ("torch", "torchvision", "numpy", "hydra-core", "omegaconf", "wandb", "gcbench")


def now() -> str:
    """Return the current time in UTC, in ISO 8601 format."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def slurm_job() -> str | None:
    """Return the id of the Slurm job of this process, or None if it belongs to none."""
    return os.environ.get("SLURM_JOB_ID")


def describe_environment(git: Git | None = None) -> Environment:
    """Return this machine, its packages and the time; `git` is by default that of `checked_out`."""
    return Environment(
        versions=_versions(), git=git or checked_out(), machine=describe_machine(), finished=now()
    )


def _versions() -> dict[str, str | None]:
    return {
        "python": platform.python_version(),
        **{package: version_of(package) for package in PACKAGES},
    }


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def checked_out() -> Git:
    """Return the commit of the checkout that gcbench is imported from, and whether it has changes.

    An installed gcbench is in no checkout; then it is that of the working directory, if any.
    """
    for directory in (Path(__file__).resolve().parent, Path.cwd()):
        commit = _git_says(directory, "rev-parse", "HEAD")
        if commit is not None:
            changes = _git_says(directory, "status", "--porcelain", "--untracked-files=no")
            return Git(commit=commit, dirty=None if changes is None else bool(changes))
    return Git(commit=None, dirty=None)


def _git_says(directory: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, no repository, no commit yet
        return None
    return done.stdout.strip()


def count_cores() -> int | None:
    """Return how many cores this process may use; None where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def describe_machine() -> Machine:
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        hostname=platform.node(),
        platform=platform.platform(),
        cpu=_cpu_model(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        aten_cpu_capability=os.environ.get("ATEN_CPU_CAPABILITY"),
        cores=count_cores(),
        memory_gib=round(memory / 2**30, 1),
        gpus=[torch.cuda.get_device_name(index) for index in gpus],
    )


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or None
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None
    )
