"""Where a run took place: versions, commit, machine."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import gcbench
from gcbench.runner.records.schema import Environment, Git, Machine

# Variables that tell git of another checkout than the folder's.
GIT_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")
PACKAGE = Path(gcbench.__file__).resolve().parent
BUILT_FROM = "built_from.json"  # which scripts/hatch_build.py adds to wheels
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

    A wheel names the commit that it was built from. Where gcbench is in no checkout and names none,
    the commit is that of the working directory, if any.
    """
    if (PACKAGE / BUILT_FROM).exists():
        return Git.model_validate_json((PACKAGE / BUILT_FROM).read_text())
    for directory in (PACKAGE, Path.cwd()):
        said = _git_says(directory, "rev-list", "--max-count=1", "--format=%cI", "HEAD")
        if said:
            _, commit, date = said.split()  # after the word "commit"
            changes = _git_says(directory, "status", "--porcelain", "--untracked-files=no")
            return Git(commit=commit, dirty=None if changes is None else bool(changes), date=date)
    return Git(commit=None, dirty=None)


def _git_says(directory: Path, *arguments: str) -> str | None:
    """Return what git prints, or None if it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in GIT_PLACES}
    environment |= {"GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError):  # no git, no repository, no commit yet
        return None
    return done.stdout.strip()


def count_cores() -> int | None:
    """Return how many cores this process may use; None where the system does not say.

    A quota of a control group, such as `docker --cpus=2`, is a limit as well.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores and max(1, int(min(cores, read_quota())))


def read_quota(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float:
    """Return the cores that the control groups of this process (version 1 or 2) let it use.

    Each line of `groups` is number:controllers:path. In a container the path may be the host's,
    so that only the files at `root` are there.
    """
    quotas = [math.inf]
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            top = root / controllers
            group = top / path.lstrip("/")
            above = (group, *group.parents)
            quotas += [_read_quota(place) for place in above if place.is_relative_to(top)]
    return min(quotas)


def _read_quota(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text()
    except OSError:
        return math.inf
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)


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
