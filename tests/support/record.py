"""Record what a test run passed, and at which commit: `pytest --record FILE`."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ["gcbench", "tests", "conf"]
WORST_FIRST = ("failed", "passed", "skipped")


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


class Recorder:
    """A pytest plugin that writes one outcome per test, the worst of all its parameters."""

    def __init__(self, file: Path) -> None:
        if git("status", "--porcelain", "--", *CODE):
            raise pytest.UsageError(
                f"--record {file}: {', '.join(CODE)} have uncommitted changes; commit them, "
                "as the record names a commit"
            )
        self.file, self.commit = file, git("rev-parse", "HEAD")
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            name = report.nodeid.removeprefix("tests/").partition("[")[0]
            before = self.outcomes.get(name, report.outcome)
            self.outcomes[name] = min(before, report.outcome, key=WORST_FIRST.index)

    def pytest_sessionfinish(self) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        outcomes = dict(sorted(self.outcomes.items()))
        record = {"commit": self.commit, "finished": now, "outcomes": outcomes}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(record, indent=1) + "\n")
