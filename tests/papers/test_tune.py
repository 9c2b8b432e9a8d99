"""`gcbench papers tune`: which tries a row gets, what they choose, and what the test part gets."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from needed import patience
from results import result_of, write

from gcbench.papers.claims.missing import SEEDS
from gcbench.papers.tune import TEST, VALID, TunedRow, tune
from gcbench.runner.records.store import find_runs, read_run

ROW = "powersgd/table4/sgd"  # with optimizer.lr=0.1
TYPED = "+experiment/powersgd/table4=sgd"
Score = Callable[[float, int], float]  # the accuracy of a rate and a seed


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    return tmp_path


def keep(rate: float, seed: int, accuracy: float, split: str = VALID, status: str = "done") -> Path:
    """Leave the result of a run, as the command that the row asks for would."""
    own = [f"optimizer.lr={rate!r}", f"dataset.split={split}"]
    diverged = {"status": status, "reason": "not finite"} if status != "done" else {}
    result = result_of(ROW, *own, seed=seed, accuracy=accuracy, **diverged)
    return write(Path("outputs", f"{split}{rate}s{seed}{status}"), result)


def rows_of(capsys: pytest.CaptureFixture[str], *typed: str) -> tuple[str, list[str]]:
    """Return what the list says, and its lines of rows."""
    tune(["list", TYPED, *typed])
    said = capsys.readouterr().out
    return said, [line for line in said.splitlines() if line.strip().startswith("powersgd/table4")]


def tried(monkeypatch: pytest.MonkeyPatch, score: Score, *typed: str) -> list[tuple[float, int]]:
    """Run the command with a trainer that knows the scores; return the tries it made, in order."""
    order: list[tuple[float, int]] = []

    def train(row: TunedRow, commands: list[list[str]]) -> None:
        for command in commands:
            keys = dict(one.split("=", 1) for one in command)
            rate, seed = float(keys["optimizer.lr"]), int(keys["seed"])
            split, accuracy = keys["dataset.split"], score(rate, seed)
            status = "diverged" if accuracy < 0 else "done"
            order.append((rate, seed)) if split == VALID else None
            row.add(read_run(keep(rate, seed, accuracy, split, status)))

    monkeypatch.setattr("gcbench.papers.tune._run", train)
    tune([TYPED, *typed])
    return order


def test_tries_are_three_rates_and_one_more_while_the_best_is_at_an_edge(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {0.05: 80.0, 0.1: 90.0, 0.2: 91.0, 0.4: 92.0, 0.8: -1.0}
    lucky = {(0.2, 1): 5.0}  # one seed does not choose
    order = tried(monkeypatch, lambda rate, seed: scores[rate] + lucky.get((rate, seed), seed / 10))
    both = [[(rate, 1), (rate, 2)] for rate in scores]
    assert order[:6] == sum(both[:3], []) and order[6:] == sum(both[3:3], both[3])
    said = capsys.readouterr().out
    assert re.search(r"0\.2 +96 +91\.2 +93\.6 +chosen", said) and "8 tries" in said
    assert (
        "an edge of what" not in said and "On the test part: 92.83 +-" in said and "(n=3)" in said
    )
    reported = {
        run.seed for run in find_runs(["outputs"]).runs if run.flat["dataset.split"] == TEST
    }
    assert reported == {*SEEDS}
    assert all(len(line) <= 80 for line in said.splitlines() if " " * 3 in line)

    assert tried(monkeypatch, lambda rate, seed: 0.0) == []  # typed again
    assert rows_of(capsys)[1][0].split()[1:4] == ["8", "0.2", "93.6"]


def test_a_rate_that_diverges_ends_the_search_at_its_edge(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order = tried(monkeypatch, lambda rate, seed: 90 + rate if rate < 0.8 else -1.0, "report=false")
    assert [rate for rate, _ in order[::2]] == [0.05, 0.1, 0.2, 0.4, 0.8]
    said = capsys.readouterr().out
    assert re.search(r"0\.8 +diverged +diverged +-\n", said) and "0.4" in said
    assert "an edge of what" not in said
    command = f"gcbench -m {TYPED} optimizer.lr=0.4 dataset.split=test seed=1,2,3"
    assert f"On the test part: -, by {command}" in said


def test_the_most_tries_end_it_at_an_edge_and_earlier_runs_count(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(0.1, 1, 92.0)
    keep(0.025, 3, 70.0)  # of another sweep: counted, and no edge for another rate
    order = tried(monkeypatch, lambda rate, seed: 90 - rate, "tries=8", "rates=1,2")
    assert order == [(0.1, 2), (0.2, 1), (0.2, 2)]
    said = capsys.readouterr().out
    assert "5 tries" in said and re.search(r"0\.1 +92 +89\.9 +- +90\.95 +chosen", said)
    (here / "afresh" / "outputs").mkdir(parents=True)
    monkeypatch.chdir(here / "afresh")
    order = tried(monkeypatch, lambda rate, seed: 93 + rate, "tries=7", "report=false")
    said = capsys.readouterr().out
    assert len(order) == 6 and "0.2 is at an edge of what was tried; type a larger tries=" in said


def test_each_row_of_a_sweep_is_listed_around_its_own_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = ["compressor=qsgd,top_k", "model.widths=[16]", "key=min_size", "min_size=64"]
    tune(["list", *typed, "rates=0.25,1"])
    said = capsys.readouterr().out
    assert re.search(r"compressor=qsgd +0 +\(64\) +- +- +7\n", said)
    assert "compressor=top_k" in said and "14 runs of unknown cost" in said


SHORT = ("logger=none", "trainer.launcher=virtual", "trainer.threads=1", "trainer.max_steps=2")


@pytest.mark.slow
def test_real_tries_are_stopped_by_ctrl_c_and_continued(here: Path) -> None:
    typed = [*SHORT, "rates=1,2", "seeds=1", "tries=2", "compressor=qsgd", "jobs=2"]
    command = [sys.executable, "-m", "gcbench", "tune", *typed]
    started = subprocess.Popen(command, cwd=here, text=True, stdout=subprocess.PIPE)
    end = time.monotonic() + patience(120)
    while not [*here.glob("outputs/*/result.json")] and time.monotonic() < end:
        time.sleep(0.2)
    started.send_signal(signal.SIGINT)
    said, _ = started.communicate(timeout=patience(120))
    assert started.returncode == 130 and "Stopped; the same command goes on." in said
    before = {path: path.stat().st_mtime_ns for path in here.glob("outputs/*/result.json")}
    again = subprocess.run(command, cwd=here, text=True, capture_output=True, env={**os.environ})
    assert again.returncode == 0, again.stderr
    runs = find_runs([here / "outputs"]).runs
    assert sorted(run.flat["dataset.split"] for run in runs) == [TEST] * 3 + [VALID] * 2
    assert any(path.stat().st_mtime_ns == before[path] for path in before)
    assert again.stdout.count("On the test part: ") == 1

    failing = [*command, "trainer.workers=3", "exchange=hierarchical", "workers_per_node=2"]
    failed = subprocess.run(failing, cwd=here, text=True, capture_output=True)
    assert failed.returncode == 1 and failed.stderr.startswith("gcbench papers tune: ")
