"""How long tests take: `--keep-durations` notes it, and `--most SECONDS` leaves out longer ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "durations.json"  # seconds of each test, on two quiet cores
SHORT = 0.4  # seconds below which a test is not noted


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--keep-durations", action="store_true", help=f"write seconds to {FILE.name}")
    parser.addoption(
        "--most",
        type=float,
        help="leave out tests that took more seconds, but for those marked `capability`",
    )


def leave_out_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that took more seconds than --most when they were last noted."""
    most = config.getoption("--most")
    if most is None or not FILE.exists():
        return
    known = json.loads(FILE.read_text())
    long = [item for item in items if known.get(name_of(item.nodeid), 0) > most]
    left = {item for item in long if not item.get_closest_marker("capability")}
    config.hook.pytest_deselected(items=[*left])
    items[:] = [item for item in items if item not in left]


def name_of(nodeid: str) -> str:
    return nodeid.removeprefix("tests/")


class Keeper:
    """A pytest plugin that notes the seconds of each test, with its setup."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = name_of(report.nodeid)
        self.seconds[name] = self.seconds.get(name, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        known = json.loads(FILE.read_text()) if FILE.exists() else {}
        known = {**known, **self.seconds}
        kept = {name: round(known[name], 2) for name in sorted(known) if known[name] > SHORT}
        FILE.write_text(json.dumps(kept, indent=0) + "\n")


def keep(config: pytest.Config) -> None:
    """Note durations if it was asked for; workers of pytest-xdist report to this process."""
    if config.getoption("--keep-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Keeper())
