"""What the workflow runs for entries of the track, in a repository of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "track"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a repository with an entry, and a `gcbench` beside it that writes what is typed."""
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "gcbench"
    stub.write_text('#!/bin/sh\necho "$PYTHONPATH: $*"\n[ "$3" != slow ]\n')
    stub.chmod(0o755)
    root = tmp_path / "checkout"
    (root / ".ci").mkdir(parents=True)
    shutil.copy(SCRIPT, root / ".ci")
    add(root, "old", "# gcbench papers track old")
    commit(root, "init", "-q", "-b", "main")
    return root


def add(root: Path, name: str, comment: str) -> None:
    folder = root / "conf" / "track"
    (folder / "compressor").mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text("")
    (folder / "compressor" / f"{name}.yaml").write_text(f"# @package _global_\n{comment}\n")


def commit(root: Path, *first: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (first, ("add", "-A"), (*who, "commit", "-qm", "entry")):
        subprocess.run(["git", *command], cwd=root, check=True)


def judge(root: Path, since: str = "main~1") -> subprocess.CompletedProcess[str]:
    """Run the script for what differs from a commit, by default the first."""
    path = f"{root.parent / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        [root / ".ci" / "track", since, "runs"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )


def test_entries_that_changed_are_judged_by_their_own_command(checkout: Path) -> None:
    add(checkout, "mine", "# Mine: a method.\n# gcbench papers track mine optimizer.lr=0.004")
    add(checkout, "slow", "# gcbench papers track slow")
    commit(checkout, "status", "-s")
    done = judge(checkout)
    base = re.search(r" results=(\S+)/outputs$", done.stdout, re.MULTILINE)
    assert base and not Path(base[1]).exists(), "runs of the commit, which a change cannot forge"
    own = f"--config-dir conf/track outputs=runs results={base[1]}/outputs"
    assert done.stdout.splitlines() == [
        f"{checkout}/conf/track: papers track {typed} {own}"
        for typed in ("mine optimizer.lr=0.004", "slow")
    ]
    assert done.returncode == 1, "slow does not stand"


def test_an_entry_without_its_command_is_refused(checkout: Path) -> None:
    add(checkout, "mine", "# Mine: a method.")
    commit(checkout, "status", "-s")
    done = judge(checkout)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        "conf/track/compressor/mine.yaml: add the command that judges it, as in "
        "# gcbench papers track mine optimizer.lr=0.004\n"
    )


def test_without_entries_nothing_runs(checkout: Path) -> None:
    (checkout / "other").write_text("")
    commit(checkout, "status", "-s")
    done = judge(checkout)
    assert (done.returncode, done.stdout) == (0, "")
    assert judge(checkout, "nowhere").returncode, "nothing may pass for lack of a commit"
