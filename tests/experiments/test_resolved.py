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


def test_a_comment_in_conf_leaves_them_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "one.yaml"
    monkeypatch.setattr(resolved, "conf_directory", lambda: tmp_path)

    def hash_of(text: str) -> str:
        file.write_text(text)
        return resolved.hash_conf()

    before = hash_of("# @package _global_\nlr: 0.1\n")
    for same in ("lr: 0.1  # of the paper\n", "# It is that of the paper.\nlr: 0.1\n"):
        assert hash_of(f"# @package _global_\n{same}") == before
    for other in ("# @package model\nlr: 0.1\n", "# @package _global_\nlr: 0.2\n"):
        assert hash_of(other) != before


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
