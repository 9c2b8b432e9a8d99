"""The record of a test run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import record
from record import Recorder

from gcbench.papers.claims.kept_tests import find_tests


def report(nodeid: str, outcome: str, when: str = "call") -> SimpleNamespace:
    return SimpleNamespace(nodeid=f"tests/{nodeid}", outcome=outcome, when=when)


def test_a_test_has_passed_if_all_its_parameters_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        record, "git", lambda *arguments: "" if arguments[0] == "status" else "abc1234"
    )
    recorder = Recorder(tmp_path / "results" / "tests.json")
    for one in (
        report("a.py::test_x[1]", "passed"),
        report("a.py::test_x[2]", "failed"),
        report("a.py::test_y[1]", "skipped", "setup"),
        report("a.py::test_y[2]", "passed"),
        report("a.py::test_z", "passed"),
        report("a.py::test_z", "failed", "teardown"),
    ):
        recorder.pytest_runtest_logreport(one)  # type: ignore[arg-type]
    recorder.pytest_sessionfinish()
    read = find_tests([tmp_path])
    assert read is not None and read.record.commit == "abc1234"
    facts = read.record.outcomes
    assert facts == {"a.py::test_x": "failed", "a.py::test_y": "passed", "a.py::test_z": "failed"}


def test_changes_that_no_commit_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "git", lambda *_: " M gcbench/runner/command/main.py")
    with pytest.raises(pytest.UsageError, match="uncommitted changes"):
        Recorder(Path("tests.json"))
