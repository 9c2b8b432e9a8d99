"""scripts/faults: a run that was disturbed ends as one that was not, and a difference is seen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from needed import patience
from sentence import run

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield
    sys.modules.pop("disturbing", None)


@pytest.mark.usefixtures("scripts")
def test_runs_are_compared_to_the_bit(tmp_path: Path) -> None:
    from disturbing import differences

    overrides = ["trainer.launcher=virtual", "trainer.max_steps=2", "logger=csv"]
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        run(tmp_path / name, *overrides, f"seed={seed}")
    assert differences(tmp_path / "one", tmp_path / "same") == []
    found = {line.split(".")[0] for line in differences(tmp_path / "one", tmp_path / "other")}
    assert found >= {"result", "metrics", "csv", "shared", "weights"}
    (tmp_path / "same" / "weights.pt").unlink()
    assert "weights" in differences(tmp_path / "one", tmp_path / "same")[0]


@pytest.mark.slow
def test_a_few_faults_lose_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "faults"), "--faults", "8"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(600),
    )
    assert done.returncode == 0 and ", 0 wrong" in done.stdout, done.stdout + done.stderr
