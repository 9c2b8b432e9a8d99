"""A test that is skipped where it should run counts as failed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from needed import lacks, patience, unexpected
from processes import Copy, code

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


SKIPPING = """
import pytest
def test_of_a_gpu(): pytest.skip("needs gpu: there is none")
def test_of_data(): pytest.skip("needs data: there are none")
"""


def test_a_skipped_test_is_reported_as_failed(tmp_path: Path) -> None:
    """pytest itself reports it, with the hook in tests/conftest.py."""
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    start = f"import pytest; pytest.main(['-q', '-p', 'no:cacheprovider', {str(tmp_path)!r}])"
    environment = {**os.environ, "GCBENCH_EXPECT": "gpu"}
    with Copy(code, start, folder=tmp_path, environment=environment) as copy:
        done = copy.wait(patience(60))
    assert "1 failed, 1 skipped" in done.stdout, done.stdout
    assert "GCBENCH_EXPECT says that gpu is here (a CUDA device)" in done.stdout
