"""Reports read the stored configurations of experiments, and compose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gcbench.report import configs, resolved
from gcbench.report.command import claims, report

OUTPUTS = Path(__file__).parents[2] / "outputs"


@pytest.fixture(autouse=True)
def nothing_cached() -> Iterator[None]:
    for cached in (configs._compose_once, resolved.read_resolved):
        cached.cache_clear()
    yield
    resolved.read_resolved.cache_clear()


def refuse(*asked: object) -> None:
    raise AssertionError(f"composed: {asked}")


@pytest.mark.parametrize(
    "arguments",
    [["claims"], pytest.param(["table=powersgd", "budget=cpu"], marks=pytest.mark.slow)],
    ids=str,
)
def test_reports_on_kept_results_compose_nothing(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(configs, "compose_experiment", refuse)
    if arguments == ["claims"]:
        claims([f"results={OUTPUTS}"])
    else:
        report([*arguments, f"results={OUTPUTS}"])
    assert "reproduced" in capsys.readouterr().out or arguments != ["claims"]


def test_stored_configurations_of_other_files_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Configurations that were stored before conf/ changed must not be used."""
    before = configs.compose("powersgd/table4/sgd")
    monkeypatch.setattr(resolved, "hash_conf", lambda: "another")
    configs._compose_once.cache_clear()
    resolved.read_resolved.cache_clear()
    assert resolved.read_resolved() == {}
    assert "conf/ has changed since scripts/resolve was run" in caplog.text
    assert configs.compose("powersgd/table4/sgd").identity == before.identity
