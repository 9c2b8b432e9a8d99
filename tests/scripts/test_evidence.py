"""`scripts/evidence` runs what is missing in real processes, and skips it the next time."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gcbench.core.errors import ConfigError
from gcbench.papers.tables import tables
from gcbench.runner.records.schema import Git
from gcbench.runner.records.store import find_runs

SCRIPT = Path(__file__).parents[2] / "scripts" / "evidence"
TABLE = """
title: A small table
source: somebody, table 1
columns:
  loss: {title: Loss, measure: loss, better: lower}
rows:
  - {experiment: ecqsgd/figure3/full_precision, title: None}
  - {experiment: ecqsgd/figure3/qsgd, title: Fails, name: fails,
     with: {levels: 4, exchange: hierarchical, workers_per_node: 5}}
  - {experiment: ecqsgd/figure3/qsgd, title: QSGD, name: qsgd, with: {levels: 4}}
"""
KEYS = ("tables=small/one", "budget=smoke", "claims=false", "seeds=1", "dirty=true")


@pytest.fixture
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module, with a table of three rows, in a folder without results."""
    folder = tmp_path / "table" / "small"
    folder.mkdir(parents=True)
    (folder / "one.yaml").write_text(TABLE)
    monkeypatch.setattr(tables, "table_directory", lambda: tmp_path / "table")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.chdir(tmp_path)
    loader = importlib.machinery.SourceFileLoader("evidence", str(SCRIPT))
    spec = importlib.util.spec_from_loader("evidence", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "evidence", module)
    loader.exec_module(module)
    monkeypatch.setattr("os.nice", lambda _: 0)  # this process also runs other tests
    return module


def typed(evidence: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["evidence", *arguments])
    evidence.main()


@pytest.mark.slow
def test_a_queue_runs_all_rows_but_those_that_fail_and_is_typed_again(
    evidence: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    typed(evidence, monkeypatch, "run", *KEYS, "jobs=2")
    said = capfd.readouterr().out
    assert "2 of 3 runs done" in said and said.count("not tried again") == 1
    failed = next(line for line in said.splitlines() if "not tried again" in line)
    assert "exchange=hierarchical" in failed and "workers_per_node=5" in failed.partition("; ")[0]
    assert re.search(r"figure3=qsgd budget=smoke levels=4 seed=1: \S+ min; ", said)
    assert "gcbench report table=small/one budget=smoke results=outputs keep=outputs" in said
    runs = find_runs(["outputs"]).runs
    assert {run.experiment for run in runs if run.done} == {
        "ecqsgd/figure3/full_precision",
        "ecqsgd/figure3/qsgd",
    }
    assert {run.result.launcher for run in runs if run.done} == {"virtual"}

    typed(evidence, monkeypatch, *KEYS)
    listed = capfd.readouterr().out
    assert "exchange=hierarchical" in listed and "full_precision" not in listed
    assert "1 run of 1 row" in listed and "claims" not in listed


def test_chosen_rows_are_listed_alone(
    evidence: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(evidence, monkeypatch, *KEYS, "rows=q*")
    said = capsys.readouterr().out
    assert "levels=4" in said and "1 run of 1 row" in said
    with pytest.raises(ConfigError, match=r"rows=q,r\*: no row of the tables has such a name"):
        typed(evidence, monkeypatch, *KEYS, "rows=q,r*")


def test_changes_that_no_commit_has_are_refused(
    evidence: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "checked_out", lambda: Git(commit="c" * 40, dirty=True))
    with pytest.raises(ConfigError, match="dirty=true"):
        typed(evidence, monkeypatch, "run", *KEYS[:-1])


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["run", "hours=0"], "hours=0: type a number above 0"),
        (["start"], "type scripts/evidence list, or run"),
        (["tables=small/two"], "tables=small/two: there is no such table"),
        (["budget=huge"], "budget=huge: type budget="),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    evidence: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: list[str], answer: str
) -> None:
    with pytest.raises(ConfigError, match=answer):
        typed(evidence, monkeypatch, *arguments, "dirty=true")


def test_a_gpu_takes_a_run_at_a_time(evidence: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    device, places = evidence.find_machine(None)
    assert device == "cuda"
    assert places == [{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "6"}]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert evidence.find_machine(1).places == [{"CUDA_VISIBLE_DEVICES": "0"}]


def test_where_nothing_is_missing_no_cost_is_said(evidence: ModuleType) -> None:
    assert evidence.summary([], evidence.find_machine(None)) == "There is nothing to run."


def test_help_is_there(
    evidence: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        typed(evidence, monkeypatch, "--help")
    assert not ended.value.code and "hours=" in capsys.readouterr().out


def test_a_claims_seeds_are_reported_by_the_tables_with_its_row(evidence: ModuleType) -> None:
    run = evidence.MissingRun("ecqsgd/figure3/qsgd", ("levels=4",), "cpu", 4, None)
    assert evidence.tables_and_budgets(run) == [("small/one", "cpu")]
