"""Runs read from W&B, by a fake Api that answers like the real one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from results import result_of

from gcbench.core.errors import ConfigError
from gcbench.papers.tables.build import build, groups_of
from gcbench.papers.tables.report import report
from gcbench.papers.tables.tables import read_table
from gcbench.runner.report.command import runs
from gcbench.runner.report.wandb_runs import load_wandb

pytestmark = pytest.mark.usefixtures("here")

SGD = "powersgd/table4/sgd"


@dataclass
class FakeRun:
    id: str
    summary_metrics: dict[str, Any]

    def scan_history(self) -> list[dict[str, Any]]:
        merged = {"train/loss": 2.0, "test/loss": "NaN", "test/accuracy": 50, "bits/sent": 8}
        return [
            {"_step": 1, "_timestamp": 1.7, "compression/relative": None, **merged},
            {"_step": 2, "_runtime": 3, "time/encode": 0.5, "test_over_bits/accuracy": 50},
        ]


@dataclass
class FakeApi:
    found: list[FakeRun]

    def runs(self, path: str) -> list[FakeRun]:
        if path != "team/gcbench":
            raise ValueError(f"Could not find project {path}")
        return self.found


def test_the_same_report_as_from_files() -> None:
    logged = {"time/encode": 0.5, "test/loss": "NaN"}
    sent = {
        "result": result_of(SGD, accuracy=94.0),
        "_wandb": {"runtime": 3},
        "_step": 10,
        **logged,
    }
    found = load_wandb(
        "team/gcbench", FakeApi([FakeRun("x1", sent), FakeRun("x2", {"_runtime": 1})])
    )
    assert found.unreadable == ["team/gcbench/x2: not the result of a gcbench run"]
    (run,) = found.runs
    assert run.place == "team/gcbench/x1"
    spent = {"step": 1, "bits_sent_per_worker": 8}
    assert run.read_metrics() == [
        {"event": "train", **spent, "loss": 2.0},
        {"event": "test", **spent, "accuracy": 50},
    ]
    table = read_table("small/one")
    cell = build(table, groups_of(table, found.runs, "paper"), "paper").lines[0].cells[0]
    assert cell.ours is not None and cell.ours.mean == 94.0


def test_what_wandb_says_is_one_sentence() -> None:
    with pytest.raises(
        ConfigError, match="project=team/none: W&B answers ValueError: Could not find.*wandb login"
    ):
        load_wandb("team/none", FakeApi([]))
    with pytest.raises(ConfigError, match="type entity/project"):
        load_wandb("gcbench", FakeApi([]))


def test_a_project_without_runs_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wandb.Api", lambda: FakeApi([]))
    wandb = ["source=wandb", "project=team/gcbench"]
    runs(wandb)
    assert capsys.readouterr().out.startswith("project=team/gcbench: no runs there; type gcbench")
    with pytest.raises(ConfigError, match="project=team/gcbench: no runs there; type where"):
        report(["html", *wandb])
    with pytest.raises(ConfigError, match="tests: with source=wandb no folder is read"):
        runs(["tests", *wandb])
