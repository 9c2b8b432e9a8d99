"""The track: rules, verdicts by Student's test, the page, and the command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from results import result_of, write

from gcbench.core.conf import conf_directory, read_yaml
from gcbench.core.errors import ConfigError
from gcbench.papers.tables import tables
from gcbench.papers.tables.build import build, groups_of
from gcbench.papers.tables.configs import compose
from gcbench.papers.tables.tables import Table, read_table
from gcbench.papers.track import enter
from gcbench.papers.track.track import Track
from gcbench.papers.track.track_verdicts import judge
from gcbench.runner.check import report
from gcbench.runner.conf_files import build_checked
from gcbench.runner.config import choices
from gcbench.runner.records.result import count_bits
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.document import markdown

pytestmark = pytest.mark.usefixtures("here")

SEEDS = (1, 2, 3, 4, 5)
ENTRY = "modern/track/entry"
NOISE = (-0.01, -0.005, 0.0, 0.005, 0.01)  # of five seeds; a standard error of 0.0035
TARGET = 2.0
MIB = 8 * 2**20


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """Return the table in conf/, which conftest.py hides, with a round target."""
    monkeypatch.setattr(tables, "table_directory", choices.table_directory)
    made = read_table("modern/track")
    assert made.track
    return replace(made, track=replace(made.track, target=TARGET))


def result(experiment: str, *overrides: str, seed: int, loss: float, mib: float) -> dict[str, Any]:
    made = result_of(experiment, *overrides, seed=seed, step_seconds=None)
    bits = count_bits([mib * MIB], 200, 200, 1.0).model_dump()
    return made | {"test": {"loss": loss}, "bits_wire": bits}


def runs_of(
    experiment: str, *overrides: str, loss: float, mib: float, seeds: Sequence[int] = SEEDS
) -> list[RecordedRun]:
    """Return a run for each seed, whose losses have some noise."""
    return [
        RecordedRun(Result.parse(made), f"{experiment}-{overrides}-s{seed}", list)
        for seed, off in zip(seeds, NOISE, strict=False)
        for made in [result(experiment, *overrides, seed=seed, loss=loss + off, mib=mib)]
    ]


def baselines() -> list[RecordedRun]:
    return [
        *runs_of("modern/track/bf16", loss=TARGET - 0.1, mib=100),
        *runs_of("modern/track/qsgd", loss=TARGET - 0.1, mib=50),
    ]


def verdict(table: Table, entry: Sequence[RecordedRun]) -> tuple[bool, str]:
    rows = groups_of(table, [*baselines(), *entry], "paper")["paper"]
    assert table.track and [row.spec.title for row in rows][:2] == ["bfloat16", "QSGD, 4 bits"]
    assert {judge(table.track, row, rows).text for row in rows[:2]} == {"reaches 2"}
    judged = judge(table.track, rows[2], rows)
    return judged.stands, judged.text


@pytest.mark.parametrize(
    ("loss", "mib", "seeds", "expected"),
    [
        (TARGET - 0.014, 47, SEEDS, "stands"),  # t of 4.0, where p < 0.01 asks for 3.75
        (TARGET - 0.0125, 47, SEEDS, "does not reach 2"),  # t of 3.5
        (TARGET - 0.1, 47.4, SEEDS, "stands"),
        (TARGET - 0.1, 47.6, SEEDS, "does not receive 5 % fewer bytes"),
        (TARGET - 0.1, 10.0, (1, 2, 4), "lacks seed 3, 5"),
    ],
)
def test_an_entry_stands_if_it_reaches_the_target_with_fewer_bytes(
    table: Table, loss: float, mib: float, seeds: Sequence[int], expected: str
) -> None:
    entry = runs_of(ENTRY, "compressor=onebit", loss=loss, mib=mib, seeds=seeds)
    assert verdict(table, entry) == (expected == "stands", expected)


def test_every_seed_saves_bytes(table: Table) -> None:
    some = [
        runs_of(ENTRY, "compressor=onebit", loss=TARGET - 0.1, mib=mib)[seed - 1]
        for seed, mib in zip(SEEDS, (30, 30, 30, 30, 48), strict=True)
    ]
    assert verdict(table, some) == (False, "does not receive 5 % fewer bytes")


def test_runs_outside_the_rules_are_no_entries(table: Table) -> None:
    for broken in ("dataset.split=valid", "model.width=24", "trainer.epochs=1.06"):
        runs = runs_of(ENTRY, "compressor=onebit", broken, loss=1.0, mib=1)
        assert groups_of(table, runs, "paper")["paper"][2:] == []
    assert table.track
    rules = compose(ENTRY).flat
    free = ("trainer.epochs=1.05", "clip_norm=1", "optimizer.lr=0.1", "trainer.max_steps=9")
    assert table.track.breaches(compose(ENTRY, overrides=free).flat, rules) == {}
    for key in ("estimator", "optimizer", "schedule"):  # could read the test part, or data again
        own = {**rules, f"{key}._target_": "mine.Own"}
        assert [*table.track.breaches(own, rules)] == [f"{key}._target_=mine.Own"]


def test_the_page_has_entries_by_bytes_called_by_what_tells_them_apart(table: Table) -> None:
    runs = [
        *baselines(),
        *runs_of(ENTRY, "compressor=onebit", loss=TARGET - 0.1, mib=10),
        *runs_of(ENTRY, "compressor=onebit", "optimizer.lr=0.1", loss=TARGET, mib=10.1),
    ]
    groups = groups_of(table, runs, "paper")
    document = build(table, groups, "paper")
    assert [line.title for line in document.lines] == [
        "onebit optimizer.lr=0.008",
        "onebit optimizer.lr=0.1",
        "QSGD, 4 bits",
        "bfloat16",
    ]
    assert [cell.instead for cell in document.lines[0].cells][3:] == ["10.00", "5.00", "stands"]
    assert document.lines[0].seeds == "1, 2, 3, 4, 5" and "does not reach 2" in markdown(document)
    assert {run for row in groups["paper"] for run in row.every_run} == {*runs}, "all are kept"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: Table) -> list[list[str]]:
    """Let runs be written without training; return what was typed for them."""
    sweeps: list[list[str]] = []

    def run(command: Sequence[str]) -> None:
        assert command[1:4] == ["-m", "gcbench", "-m"]
        sweeps.append([*command[4:]])
        experiment = command[4].removeprefix("+experiment/").replace("=", "/")
        own = [one for one in command[5:] if one.startswith(("compressor=", "optimizer."))]
        seeds = next(one for one in command if one.startswith("seed=")).removeprefix("seed=")
        mib = {"bf16": 100.0, "qsgd": 50.0}.get(experiment.rpartition("/")[2], 10.0)
        mib = 50.0 if "compressor=top_k" in own else mib
        for seed in map(int, seeds.split(",")):
            made = result(experiment, *own, seed=seed, loss=1.9 + NOISE[seed - 1], mib=mib)
            write(tmp_path / "outputs" / f"{experiment}-{own[:1]}-s{seed}", made)

    monkeypatch.setattr(enter, "_run", run)
    monkeypatch.setattr(report, "check_method", lambda subject: True)
    monkeypatch.setattr(enter, "read_table", lambda name: table)
    monkeypatch.chdir(tmp_path)
    return sweeps


def test_the_command_runs_what_is_missing_and_judges(
    typed: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in SEEDS[:3]:
        made = result("modern/track/qsgd", seed=seed, loss=1.9 + NOISE[seed - 1], mib=50)
        write(tmp_path / "kept" / str(seed), made)
    older = result(ENTRY, "compressor=onebit", "optimizer.lr=0.01", seed=1, loss=9.0, mib=1)
    write(tmp_path / "kept" / "of the entry", older)
    enter.track(["onebit", "optimizer.lr=0.01", f"results={tmp_path / 'kept'}"])
    places = ["outputs=outputs", "logger=none"]
    mine = ["+experiment/modern/track=entry", "compressor=onebit", "optimizer.lr=0.01"]
    assert typed == [
        ["+experiment/modern/track=bf16", "seed=1,2,3,4,5", *places],
        ["+experiment/modern/track=qsgd", "seed=4,5", *places],
        [*mine, "seed=1,2,3,4,5", *places],
    ]
    assert capsys.readouterr().out.endswith("onebit stands.\n")
    typed.clear()
    with pytest.raises(SystemExit):
        enter.track(["top_k", f"results={tmp_path / 'kept'}"])
    assert len(typed) == 1 and capsys.readouterr().out.endswith(
        "top_k does not receive 5 % fewer bytes.\n"
    )


def test_entries_in_results_are_not_judged(
    typed: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody can write a result with fewer bytes and a later date."""
    for seed in SEEDS:
        forged = result(ENTRY, "compressor=top_k", seed=seed, loss=1.5, mib=0.001)
        write(tmp_path / "kept" / str(seed), forged)
    with pytest.raises(SystemExit):
        enter.track(["top_k", f"results={tmp_path / 'kept'}"])
    assert "top_k does not receive" in capsys.readouterr().out


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, which a shell in the background has switched off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_after_ctrl_c_a_run_ends_by_itself(tmp_path: Path, ctrl_c: None) -> None:
    """A run takes longer to write its checkpoint than Python waits for it by itself."""
    typed = "import os, signal, sys, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(1)"
    left = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        enter._run([sys.executable, "-c", f"{typed}; open(sys.argv[1], 'w')", str(left)])
    assert left.exists()


def test_what_breaks_a_rule_or_fails_a_check_is_not_trained(
    typed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "check_method", lambda subject: False)
    with pytest.raises(Exception, match="onebit: it fails gcbench check"):
        enter.track(["onebit"])
    with pytest.raises(ConfigError, match="model.width=64: the track has model.width=48"):
        enter.track(["onebit", "model.width=64"])
    assert typed == []


def test_the_rules_are_those_of_the_page() -> None:
    page = (conf_directory() / "track/README.md").read_text().replace("\n", " ")
    path = conf_directory() / "table/modern/track.yaml"
    track = build_checked(Track, read_yaml(path)["track"], path)
    facts = (f"below {track.target:g}", f"p < {track.level:g}", f"up to {track.tokens:g}")
    facts += (f"at least {100 * track.saving:g} % fewer bytes",)
    assert all(fact in page for fact in facts) and track.seeds == SEEDS
