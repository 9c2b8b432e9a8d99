from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from results import CONFIG

from gcbench.runner.records import environment as records_environment
from gcbench.runner.records.environment import checked_out, describe_environment, read_quota
from gcbench.runner.records.result import Begun, make_result
from gcbench.runner.records.schema import Extended, Git
from gcbench.runner.settings.config import RunConfig


def git(directory: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(directory), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder for a checkout, with gcbench itself outside of any checkout."""
    (tmp_path / "site").mkdir()
    monkeypatch.setattr(records_environment, "PACKAGE", tmp_path / "site")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    checkout = tmp_path / "project"
    checkout.mkdir()
    monkeypatch.chdir(checkout)
    return checkout


def test_versions_and_machine() -> None:
    here = describe_environment()
    assert here.versions["python"] == platform.python_version()
    assert here.versions["torch"] == version("torch")
    assert set(here.versions) >= {*"torchvision numpy hydra-core omegaconf wandb gcbench".split()}
    machine = here.machine
    assert machine is not None and machine.hostname
    assert (machine.cores or 0) >= 1 and (machine.memory_gib or 0) > 0
    json.dumps(here.model_dump(), allow_nan=False)


def test_commit_and_changes_of_a_checkout(checkout: Path) -> None:
    assert checked_out() == Git(commit=None, dirty=None)
    git(checkout, "init")
    assert checked_out() == Git(commit=None, dirty=None)
    (checkout / "file").write_text("1")
    git(checkout, "add", "file")
    git(checkout, "commit", "-m", "first")
    commit, date = git(checkout, "log", "--format=%H %cI").split()
    assert checked_out() == Git(commit=commit, dirty=False, date=date)
    (checkout / "file").write_text("2")
    assert checked_out().dirty is True
    built_from = Git(commit="a" * 40, dirty=False, date=date)
    (checkout.parent / "site" / "built_from.json").write_text(built_from.model_dump_json())
    assert checked_out() == built_from


def test_no_git_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert checked_out() == Git(commit=None, dirty=None)


def test_the_instructions_that_torch_uses() -> None:
    code = (
        "from gcbench.runner.records.environment import describe_environment; "
        "print(describe_environment().machine.model_dump_json())"
    )

    def machine(**more: str) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if k != "ATEN_CPU_CAPABILITY"}
        return json.loads(
            subprocess.check_output([sys.executable, "-c", code], env={**clean, **more})
        )

    description = machine(ATEN_CPU_CAPABILITY="default")
    assert (description["cpu_capability"], description["aten_cpu_capability"]) == (
        "DEFAULT",
        "default",
    )
    here = describe_environment().machine
    assert here is not None and here.cpu_capability == torch.backends.cpu.get_cpu_capability()


def test_a_run_names_the_commit_of_its_start_and_those_it_was_continued_with(
    checkout: Path,
) -> None:
    git(checkout, "init")
    (checkout / "file").write_text("1")
    git(checkout, "add", "file")
    git(checkout, "commit", "-m", "first")
    first = Begun.here()
    (checkout / "file").write_text("2")
    continued = Begun.here(first.as_json({}))
    commit, date = git(checkout, "log", "--format=%H %cI").split()
    assert first.git == Git(commit=commit, dirty=False, date=date)
    assert continued.git == Git(commit=commit, dirty=True, date=date)
    git(checkout, "commit", "-am", "second")
    where = Extended(from_step=3, from_epoch=1.5)
    other = Begun.here(continued.as_json({}), where)
    later = git(checkout, "rev-parse", "HEAD")
    assert other.git == Git(commit=commit, dirty=True, date=date, later_commits=[later])
    assert other.extended == [where]
    config = RunConfig.of({"experiment": None, "choices": {}, **CONFIG})
    assert make_result(config, first, "failed", "why").git == first.git, (
        "whatever the checkout is now"
    )


def test_a_quota_of_a_control_group_limits_the_cores(tmp_path: Path) -> None:
    """Containers (docker --cpus=2) and services have all cores in their affinity."""
    groups, root = tmp_path / "cgroup", tmp_path / "fs"
    files = {
        "limited/inner/cpu.max": "max 100000\n",
        "limited/cpu.max": "250000 100000\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
        "cpu,cpuacct/cpu.cfs_period_us": "50000\n",
        "cpu,cpuacct/free/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/free/cpu.cfs_period_us": "100000\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for line, cores in (
        ("0::/limited/inner", 2.5),
        ("0::/", math.inf),
        ("4:cpu,cpuacct:/free", 3.0),  # the group above it counts too
        ("4:cpu,cpuacct:/docker/12ab", 3.0),  # a path of the host, in a container
        ("5:memory:/limited", math.inf),
    ):
        groups.write_text(f"{line}\n")
        assert read_quota(groups, root) == cores, line
    assert read_quota(tmp_path / "none", root) == math.inf


@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/cpu/cpu.shares", os.W_OK), reason="no control group to write to"
)
def test_this_process_counts_the_cores_of_its_group(tmp_path: Path) -> None:
    group = Path("/sys/fs/cgroup/cpu") / f"gcbench-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text("100000")
        code = (
            f"open('{group}/cgroup.procs', 'w').write('0'); "
            "from gcbench.runner.records.environment import count_cores; print(count_cores())"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "1\n", done.stderr
    finally:
        group.rmdir()
