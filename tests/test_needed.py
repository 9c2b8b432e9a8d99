"""A skip that should not be is a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from needed import lacks, patience, unexpected

DATA = f"Skipped: {lacks('data', 'no digits under /data')}"


@pytest.mark.parametrize(
    ("expected", "reason", "says"),
    [
        (None, DATA, None),
        (None, "Skipped: not today", None),
        ("", DATA, None),
        ("slurm,netns", DATA, None),
        ("slurm,data", DATA, "GCBENCH_EXPECT says that data is here"),
        ("", "Skipped: not today", "does not know: Skipped: not today"),
        ("slurm", "Skipped: could not import 'wandb'", "does not know"),
        ("dat", DATA, "GCBENCH_EXPECT=dat: dat is none of cpu, gpu, data"),
    ],
)
def test_a_skip_is_a_failure_where_it_was_not_expected(
    expected: str | None, reason: str, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GCBENCH_EXPECT", raising=False)
    if expected is not None:
        monkeypatch.setenv("GCBENCH_EXPECT", expected)
    found = unexpected(reason)
    assert found is None if says is None else says in str(found)


def test_a_skipped_test_is_reported_as_failed(tmp_path: Path) -> None:
    """By pytest itself, with the hook of tests/conftest.py."""
    file = tmp_path / "test_skipping.py"
    file.write_text("import pytest\ndef test_it(): pytest.skip('needs gpu: there is none')\n")
    conftest = Path(__file__).with_name("conftest.py")
    shutil.copy(conftest, tmp_path)
    path = os.pathsep.join(sys.path)

    def outcome(expected: str) -> str:
        environment = {**os.environ, "PYTHONPATH": path, "GCBENCH_EXPECT": expected}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(60))
        return done.stdout

    assert "1 skipped" in outcome("data")
    assert "GCBENCH_EXPECT says that gpu is here (a CUDA device)" in outcome("data,gpu")
