"""Reports keep configurations of rows in the user's cache, and compose each only once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gcbench
from gcbench.papers.tables import configs, kept_configs
from gcbench.papers.tables.kept_configs import COMPOSING
from gcbench.papers.tables.report import report
from gcbench.papers.tables.rows import group_runs
from gcbench.papers.tables.tables import overrides_of, read_table, table_names
from gcbench.runner.config import choices
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.config.rows import merge_row
from gcbench.runner.identity import clear_folders
from gcbench.runner.records.store import find_runs
from tests.support.nightly import slow_but

OUTPUTS = Path(__file__).parents[3] / "outputs"
ROW = ("powersgd/table4/sgd", "cpu")
FAST = ("qsgd/figure2", "powersgd/table4")


def forget() -> None:
    """Leave the process as one that has just begun, with the user's cache as it is."""
    for cached in (configs._compose_once, kept_configs._read, kept_configs._folder):
        cached.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache" / "gcbench" / "rows"
    forget()


def refuse(*asked: object) -> None:
    raise AssertionError(f"composed: {asked}")


def test_a_second_report_composes_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["table=powersgd/table7", "budget=cpu", f"results={OUTPUTS}"]
    report(asked)
    first = capsys.readouterr().out
    forget()
    monkeypatch.setattr(configs, "compose_experiment", refuse)
    report(asked)
    assert capsys.readouterr().out == first
    assert {file.stem for file in cache.glob("*/*")} == {  # of which it borrows runs
        "powersgd-table7",
        "powersgd-table3_wikitext2",
    }


def test_only_rows_that_may_have_a_run_are_composed_at_its_budget(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = []

    def count(*asked: Any) -> Any:
        composed.append(asked)
        return compose_experiment(*asked)

    compose_experiment = configs.compose_experiment
    monkeypatch.setattr(configs, "compose_experiment", count)
    runs = [run for run in find_runs([OUTPUTS]).runs if run.budget == "cpu"]
    rows = group_runs(read_table("powersgd/table7"), runs, "cpu")
    lender = next(run for row in rows for run in row.borrowed)
    (row,) = (row.spec.experiment for row in rows if lender in row.runs)
    forget()
    shutil.rmtree(cache)
    composed.clear()
    again = group_runs(read_table("powersgd/table7"), [lender], "cpu")
    assert [row.spec.experiment for row in again if row.runs] == [row]
    assert {row for row, budget, _ in composed if budget == "cpu"} == {row}, "and no other row"


def test_a_row_with_overrides_is_composed_as_hydra_does(cache: Path) -> None:
    row = "powersgd/table3_cifar10/rank_2"
    for overrides in (
        ("trainer.workers=2", "rank=4", "trainer.backend=gloo"),
        ("optimizer=adamw",),
    ):
        assert_hydra_composes_the_same(row, overrides, "cpu")
    for mistake in ("+rank=4", "ranks=4", "trainer={gpus: 2}", "compressor=null"):
        assert merge_row(row, (mistake,)) is None


@pytest.mark.parametrize("name", slow_but(FAST, table_names()))
def test_rows_are_composed_as_hydra_does(name: str) -> None:
    rows = [row for row in read_table(name).rows if row.experiment]
    of_method = {row.experiment: row for row in rows}  # the last row, with most overrides
    for row in of_method.values():
        assert_hydra_composes_the_same(str(row.experiment), overrides_of(row.settings), "cpu")


def assert_hydra_composes_the_same(row: str, overrides: tuple[str, ...], budget: str) -> None:
    typed = [configs.experiment_override(row), f"budget={budget}", *overrides]
    expected = json.loads(json.dumps(resolve(compose_overrides(typed)).as_dict()))
    assert merge_row(row, overrides) is not None
    assert configs.compose_experiment(row, budget, overrides) == expected


def test_a_cached_configuration_is_what_composing_gives(cache: Path) -> None:
    composed = configs.compose(*ROW).config
    forget()
    assert configs.compose(*ROW).config == composed
    again = configs.compose_experiment(*ROW, ())
    assert clear_folders(again) == composed


def test_a_change_of_conf_or_of_the_code_composes_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment changes nothing, and neither does what a table prints beside what its rows run."""
    file, table = tmp_path / "one.yaml", tmp_path / "table" / "paper" / "table1.yaml"
    table.parent.mkdir(parents=True)
    for room in (kept_configs, choices):
        monkeypatch.setattr(room, "conf_directory", lambda: tmp_path)

    def hash_of(text: str, row: str) -> str:
        file.write_text(f"# @package _global_\n{text}")
        table.write_text(f"rows:\n  - {{{row}}}\n")
        choices.runs_in.cache_clear()
        return kept_configs.hash_sources()

    row = "name: a, runs: {bits: 4}"
    before = hash_of("lr: 0.1\n", row)
    assert hash_of("lr: 0.1  # of the paper\n", row) == before
    assert hash_of("# It is that of the paper.\nlr: 0.1\n", row) == before
    assert hash_of("lr: 0.1\n", f"{row}, title: QSGD, published: {{accuracy: 90}}") == before
    assert hash_of("lr: 0.2\n", row) != before
    assert hash_of("lr: 0.1\n", "name: a, runs: {bits: 2}") != before
    monkeypatch.setattr(kept_configs, "COMPOSING", COMPOSING[:2])
    assert hash_of("lr: 0.1\n", row) != before


def test_all_code_that_composes_is_hashed() -> None:
    package = Path(gcbench.__file__).parent
    parts = [package / part for part in COMPOSING]
    files = {file for part in parts for file in ([part] if part.suffix else part.rglob("*.py"))}
    assert len(files) > 20
    for file in files:
        for line in file.read_text().splitlines():  # what is imported for types alone is indented
            if line.startswith(("from gcbench.", "import gcbench.")):
                _, module, *_, name = line.split()
                places = (f"{one.replace('.', '/')}.py" for one in (module, f"{module}.{name}"))
                assert {package.parent / place for place in places} & files, f"{file}: {line}"


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:-9],  # the process was killed
        lambda line: line.replace(b"4", b"5", 1) if b"4" in line else line[1:],
        lambda line: line.replace(b"sgd", b"\xff", 1),
        lambda line: b"5\n",
        lambda line: b"[" * 100_000,
    ],
)
def test_a_damaged_line_is_composed_again(cache: Path, damage: Callable[[bytes], bytes]) -> None:
    composed = configs.compose(*ROW).config
    (file,) = cache.glob("*/*")
    file.write_bytes(damage(file.read_bytes()))
    forget()
    assert configs.compose(*ROW).config == composed
    forget()
    assert kept_configs._read("powersgd/table4") == {"powersgd/table4/sgd budget=cpu": composed}


def test_a_cache_that_others_can_write_to_is_not_used(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Configurations name code, and a command that a report prints is typed as it stands there."""
    cache.mkdir(parents=True)
    cache.parent.chmod(0o777)
    assert configs.compose(*ROW).config["choices"]["compressor"] == "none"
    assert "composed anew every time" in caplog.text and not list(cache.glob("*/*"))


def test_only_a_few_folders_are_kept(cache: Path) -> None:
    for number in range(kept_configs.KEPT + 2):
        (cache / str(number)).mkdir(parents=True)
    configs.compose(*ROW)
    assert len(list(cache.iterdir())) == kept_configs.KEPT and list(cache.glob("*/*.jsonl"))
