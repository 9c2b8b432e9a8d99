"""The working folder's modules, which may have names of Python's own, shadow no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from needed import patience
from processes import command

from gcbench.runner.records import environment
from gcbench.runner.records.environment import checked_out
from gcbench.runner.records.schema import Git

MARK = "open({!r}, 'w').close()\n"
ENVIRONMENT = {**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": ""}
TINY = "trainer.max_steps=1 logger=none trainer.eval_every=null min_size=0"


def plant(folder: Path) -> Path:
    """Fill a folder with modules that others look for; return the file that they make if run."""
    mark = folder.parent / "ran"
    code = MARK.format(str(mark))
    names = ["evil", "sitecustomize", "usercustomize", "triton", "yaml"]
    if sys.version_info >= (3, 11):  # earlier, Python cannot be told not to look here
        names.append("multiprocessing")
    for name in names:
        (folder / f"{name}.py").write_text(code)
    for package in ("hydra_plugins", "evil-1.0.dist-info"):
        (folder / package).mkdir()
    (folder / "hydra_plugins" / "evil.py").write_text(code)
    # torch imports all modules that a package on the path names so.
    points = folder / "evil-1.0.dist-info" / "entry_points.txt"
    points.write_text("[torch.backends]\nevil = evil:start\n")
    points.with_name("METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    return mark


def typed_in(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=patience(200),
    )


@pytest.fixture
def others(tmp_path: Path) -> Path:
    folder = tmp_path / "others"
    folder.mkdir()
    return folder


# What the installed script does, and then a process that it starts.
SCRIPT = """
import multiprocessing, sys
from gcbench.runner.command.main import main

if __name__ == "__main__":
    sys.argv[1:] = ["--help"]
    main()
    process = multiprocessing.get_context("spawn").Process(target=print, args=["spawned"])
    process.start()
    process.join()
"""


def test_no_process_of_the_command_imports_what_lies_there(others: Path, tmp_path: Path) -> None:
    """Spawned ones look first in the working directory, also for modules of Python's own."""
    mark = plant(others)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = typed_in(others, sys.executable, tmp_path / "script.py")
    assert "spawned" in done.stdout and not mark.exists(), done.stderr


def test_with_python_m_nothing_is_imported_from_there(others: Path) -> None:
    mark = plant(others)
    done = typed_in(others, sys.executable, "-m", "gcbench", "--help")
    assert done.returncode == 0 and "Subcommands" in done.stdout, done.stderr
    assert not mark.exists()


def test_what_is_typed_is_imported_with_what_lies_beside_it(others: Path) -> None:
    """Also later, by a function, and in every process of a run."""
    (others / "mine").mkdir()
    (others / "mine" / "net.py").write_text(
        "import torch\nimport beside\nclass Net(torch.nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(64, 10)\n"
        "    def forward(self, x):\n        import later\n"
        "        return super().forward(x.flatten(1))\n"
    )
    for name in ("beside", "later"):
        (others / f"{name}.py").write_text("")
    mark = others.parent / "ran"
    (others / "hydra_plugins").mkdir()
    (others / "hydra_plugins" / "evil.py").write_text(MARK.format(str(mark)))
    arguments = ("model._target_=mine.net.Net", *TINY.split(), "trainer.workers=2")
    done = command(arguments, others, ENVIRONMENT, timeout=patience(200))
    assert done.returncode == 0 and not mark.exists(), done.stderr


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_git_is_asked_about_the_folder_only(
    others: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program that git has started, such as a hook, has variables that name its repository."""
    monkeypatch.setattr(environment, "PACKAGE", tmp_path / "site")
    monkeypatch.chdir(others)
    git(tmp_path, "init", "another")
    git(tmp_path / "another", "commit", "--allow-empty", "-m", "first")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another" / ".git"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert checked_out() == Git(commit=None, dirty=None)
