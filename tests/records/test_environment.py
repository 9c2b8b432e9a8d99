from __future__ import annotations

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from gcbench.records import environment as records_environment
from gcbench.records.environment import _git, environment


def git(directory: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(directory), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory is a checkout, gcbench's own is none."""
    installed = tmp_path / "site" / "environment.py"
    installed.parent.mkdir()
    monkeypatch.setattr(records_environment, "__file__", str(installed))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    checkout = tmp_path / "project"
    checkout.mkdir()
    monkeypatch.chdir(checkout)
    return checkout


def test_versions_and_machine() -> None:
    found = environment()
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["torch"] == version("torch")
    assert set(found["versions"]) >= {"torchvision", "numpy", "hydra-core", "omegaconf", "wandb", "gcbench"}
    machine = found["machine"]
    assert machine["cores"] >= 1 and machine["memory_gib"] > 0 and machine["hostname"]
    assert set(machine) == {"hostname", "platform", "cpu", "cores", "memory_gib", "gpus"}
    json.dumps(found, allow_nan=False)


def test_commit_and_changes_of_a_checkout(checkout: Path) -> None:
    assert _git() == {"commit": None, "dirty": None}
    git(checkout, "init")
    assert _git() == {"commit": None, "dirty": None}
    (checkout / "file").write_text("1")
    git(checkout, "add", "file")
    git(checkout, "commit", "-m", "first")
    assert _git() == {"commit": git(checkout, "rev-parse", "HEAD"), "dirty": False}
    (checkout / "file").write_text("2")
    assert _git()["dirty"] is True


def test_no_git_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert _git() == {"commit": None, "dirty": None}
