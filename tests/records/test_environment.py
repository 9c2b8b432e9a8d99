from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from gcbench.records import environment as records_environment
from gcbench.records.environment import checked_out, environment
from gcbench.records.result import Begun, unfinished


def git(directory: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(directory), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the current directory a checkout, and gcbench's own none."""
    installed = tmp_path / "site" / "environment.py"
    installed.parent.mkdir()
    monkeypatch.setattr(records_environment, "__file__", str(installed))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    checkout = tmp_path / "project"
    checkout.mkdir()
    monkeypatch.chdir(checkout)
    return checkout


def test_versions_and_machine() -> None:
    facts = environment()
    assert facts["versions"]["python"] == platform.python_version()
    assert facts["versions"]["torch"] == version("torch")
    assert set(facts["versions"]) >= {
        "torchvision",
        "numpy",
        "hydra-core",
        "omegaconf",
        "wandb",
        "gcbench",
    }
    machine = facts["machine"]
    assert machine["cores"] >= 1 and machine["memory_gib"] > 0 and machine["hostname"]
    assert set(machine) == {
        *"hostname platform cpu cores memory_gib gpus cpu_capability aten_cpu_capability".split()
    }
    json.dumps(facts, allow_nan=False)


def test_commit_and_changes_of_a_checkout(checkout: Path) -> None:
    assert checked_out() == {"commit": None, "dirty": None}
    git(checkout, "init")
    assert checked_out() == {"commit": None, "dirty": None}
    (checkout / "file").write_text("1")
    git(checkout, "add", "file")
    git(checkout, "commit", "-m", "first")
    assert checked_out() == {"commit": git(checkout, "rev-parse", "HEAD"), "dirty": False}
    (checkout / "file").write_text("2")
    assert checked_out()["dirty"] is True


def test_no_git_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert checked_out() == {"commit": None, "dirty": None}


def test_the_instructions_that_torch_uses() -> None:
    code = (
        "import json; from gcbench.records.environment import environment; "
        "print(json.dumps(environment()['machine']))"
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
    assert environment()["machine"]["cpu_capability"] == torch.backends.cpu.get_cpu_capability()


def test_a_run_names_the_commit_of_its_start_and_those_it_was_continued_with(
    checkout: Path,
) -> None:
    git(checkout, "init")
    (checkout / "file").write_text("1")
    git(checkout, "add", "file")
    git(checkout, "commit", "-m", "first")
    first = Begun.here()
    (checkout / "file").write_text("2")
    continued = Begun.here({"git": first.git, "extended": []})
    assert first.git == {"commit": git(checkout, "rev-parse", "HEAD"), "dirty": False}
    assert continued.git == {**first.git, "dirty": True}
    git(checkout, "commit", "-am", "second")
    other = Begun.here({"git": continued.git, "extended": []}, {"from_step": 3, "from_epoch": 1.5})
    assert other.git == {**continued.git, "later_commits": [git(checkout, "rev-parse", "HEAD")]}
    assert other.extended == [{"from_step": 3, "from_epoch": 1.5}]
    config = {"experiment": None, "choices": {}}
    assert unfinished(config, "failed", "why", first)["git"] == first.git, (
        "whatever the checkout is now"
    )
