"""`gcbench runs` selects and sorts by any key; rm and where find a run by its hash."""

from __future__ import annotations

import fcntl
import io
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from results import result_of, write
from rich.console import Console

from gcbench.core.errors import ConfigError
from gcbench.runner import console
from gcbench.runner.command.folders import remove, where
from gcbench.runner.records.store import find_runs
from gcbench.runner.report.command import runs
from gcbench.runner.report.listing import list_configurations, list_runs, overrides_by_run

SGD, RANK = "powersgd/table4/sgd", "powersgd/table4/rank_2"
OUT = Path("outputs")
Printed = Callable[..., list[str]]


@pytest.fixture
def printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Printed:
    """Return a function that gives the lines of `gcbench runs` on four runs."""
    monkeypatch.chdir(tmp_path)
    now = datetime.now(timezone.utc)
    for number, (row, seed, accuracy, status, hours) in enumerate(
        (
            (SGD, 1, 90.0, "done", 100),
            (SGD, 2, 94.0, "done", 50),
            (RANK, 1, 93.0, "done", 1),
            (RANK, 2, 10.0, "failed", 0),
        )
    ):
        finished = (now - timedelta(hours=hours)).isoformat()
        result = result_of(row, seed=seed, accuracy=accuracy, status=status, finished=finished)
        write(OUT / f"{row.replace('/', '-')}-s{seed}-{number:08x}", result)

    def said(*typed: str) -> list[str]:
        runs(typed)
        return capsys.readouterr().out.splitlines()

    return said


def hashes(lines: list[str]) -> list[int]:
    """Return the numbers of the runs in a listing."""
    words = [line.split()[0] for line in lines if line.strip()]
    return [int(word, 16) for word in words if len(word) == 8 and word[:7] == "0000000"]


def test_runs_are_selected_by_any_key(printed: Printed) -> None:
    assert hashes(printed("all")) == [0, 1, 2, 3]
    for typed, found in (
        (["compressor=powersgd"], [2, 3]),
        (["compressor=powersgd,none", "status=done"], [0, 1, 2]),
        (["rank=2", "seed=1"], [2]),
        (["since=60h"], [1, 2, 3]),
        (["since=2d", "status=done"], [2]),
        (["since=2020-01-01"], [0, 1, 2, 3]),
        (["accuracy=94"], [1]),
        (["hash=00000003"], [3]),
    ):
        assert hashes(printed("all", *typed)) == found, typed
        assert len(printed("format=csv", *typed)) == 1 + len(found)
    nothing = "results=outputs: no run is all of this; leave out some of what you typed"
    assert printed("status=failed", "seed=1") == [nothing]


def test_runs_are_sorted_by_any_key(printed: Printed) -> None:
    assert hashes(printed("all", "sort=-accuracy")) == [1, 2, 0, 3]
    assert hashes(printed("all", "sort=seed")) == [0, 2, 1, 3]
    assert hashes(printed("all", "sort=rank")) == [2, 3, 0, 1]  # the others have no rank
    assert hashes(printed("sort=accuracy")) == [1, 3]  # means of 92 and 93, the newest runs
    lines = printed("sort=-optimizer.lr")
    assert "optimizer.lr" in lines[1] and "x bf16" not in lines[1]
    assert "x bf16" in printed("sort=accuracy")[1]
    assert len(printed("format=csv", "sort=accuracy")) == 5


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("lr=0.1", "lr=0.1: no run has this key; type optimizer.lr=0.1"),
        ("reslts=a", "reslts=a: no run has this key; type results=a"),
        ("sort=-acuracy", "sort=-acuracy: no run has this key; type sort=accuracy"),
        ("compressor=powrsgd", "compressor=powrsgd: no run has this; type compressor=powersgd"),
        ("seed=7", "seed=7: no run has this; type seed=1, 2"),
        ("since=soon", "since=soon: type a time that has passed"),
        ("model._target_=x", "model._target_=x: no run has this key"),
    ],
)
def test_a_key_or_a_value_that_no_run_has_is_refused(
    printed: Printed, typed: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        printed(typed)


def test_listings_keep_to_the_width_of_a_terminal(printed: Printed) -> None:
    every = find_runs(["outputs"]).runs
    for table in (list_runs(every), list_configurations(every, "-vnmse")):
        output = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
        console.print_table(table, output)
        assert isinstance(output.file, io.StringIO)
        lines = output.file.getvalue().splitlines()
        of_paths = [line for line in lines if "outputs/" in line]
        assert max(len(line) for line in lines if line not in of_paths) <= 80
        assert any(line.startswith(f"   {SGD}") for line in lines), lines


def test_classes_do_not_tell_runs_apart(printed: Printed) -> None:
    every = find_runs(["outputs"]).runs
    every[0].config["name"] = every[2].config["name"] = "first"
    every[0].config["optimizer"]["_target_"] = "my.pkg.Lion"
    for run in every:
        run.config["knobs"] = None  # as in runs of older versions
    told = overrides_by_run(dict.fromkeys(every, "first"))
    assert "_target_" not in repr(told.values()) and "compressor=none" in told[every[0]]


def test_a_run_is_found_by_its_hash(printed: Printed, capsys: pytest.CaptureFixture[str]) -> None:
    where(["00000002"])
    assert Path(capsys.readouterr().out.strip()).name == "powersgd-table4-rank_2-s1-00000002"
    with pytest.raises(ConfigError, match="0000: 4 runs are called so; type one of outputs/"):
        where(["0000"])
    with pytest.raises(ConfigError, match="00000022: there is no such run in outputs; type 0000"):
        where(["00000022"])


def test_runs_are_removed_after_asking(
    printed: Printed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="no terminal on which to ask; type yes=true"):
        remove(["00000001"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, left in (("", 4), ("y", 3)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        remove(["00000001"])
        assert len([*OUT.iterdir()]) == left
    remove(["00000002", "00000003", "yes=true"])
    assert [path.name[-8:] for path in OUT.iterdir()] == ["00000000"]


def test_a_run_that_is_running_is_not_removed(printed: Printed) -> None:
    folder = next(OUT.glob("*00000002"))
    with (folder / "run.lock").open("w") as file:
        file.write("process 7 on elsewhere")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="is being run by process 7 on elsewhere; stop it"):
            remove(["00000001", "00000002", "yes=true"])
        assert len([*OUT.iterdir()]) == 4
    remove(["00000001", "00000002", "yes=true"])
    assert len([*OUT.iterdir()]) == 2
