"""Pages show the numbers of kept tables, which can be made again from the kept results."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from lib import grid, predictions, reach, steps
from needed import patience
from nightly import each

import gcbench
from gcbench.papers.ladder.ladder_map import answer_of, as_json
from gcbench.papers.reach.reach import race_of
from gcbench.papers.tables.configs import compose_row
from gcbench.papers.tables.measured import find_link_table
from gcbench.papers.tables.report import report
from gcbench.papers.tables.rows import group_runs
from gcbench.papers.tables.tables import read_table
from gcbench.runner.config.budget import PAPER, budget_names
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.console import PAGE_WIDTH
from gcbench.runner.records.store import find_runs

MAP = "outputs/figures/modern/ladder/map.json"
ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts/readme"))
PAGES, METHODS = SCRIPT["PAGES"], SCRIPT["METHODS"]
KEPT = sorted(
    table
    for page in PAGES
    for table in re.findall(
        r"<!-- (outputs/tables/\S+\.md) -->", (ROOT / page).read_text(encoding="utf-8")
    )
)
EVERY_PAGE = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.md"), *ROOT.glob("[cgos]*/**/*.md")]
    if "tables" not in path.parts or path.name == "README.md"
)


# One table at budget=paper and one at a smaller budget; the others take seconds each and are slow.
QUICK = {"outputs/tables/ecqsgd/table1_a9a.md", "outputs/tables/powersgd/table3_cifar10-cpu.md"}
EVERY_TABLE = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "outputs/tables").rglob("*.md")
    if path.name != "README.md"
)
TABLES = [table for table in EVERY_TABLE if "/links/" not in table]
FROM_RESULTS = [
    pytest.param(kept, marks=() if kept in QUICK else pytest.mark.slow) for kept in TABLES
]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "scripts" / "readme"), "--check"],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("script", ["readme"])
def test_an_unknown_argument_starts_nothing(script: str, tmp_path: Path) -> None:
    """Should a script start, its copy would write no file: it has no pages, or is stopped first."""
    copy = tmp_path / "scripts" / script
    copy.parent.mkdir()
    shutil.copy(ROOT / "scripts" / script, copy)
    typed = [sys.executable, str(copy), "--hlep"]
    done = subprocess.run(typed, capture_output=True, text=True, timeout=patience(60))
    assert done.returncode == 2 and "unrecognized arguments: --hlep" in done.stderr


def test_pages_have_the_numbers_of_the_kept_tables(tmp_path: Path) -> None:
    assert set(KEPT) > QUICK and check(ROOT).returncode == 0
    (tmp_path / "scripts").mkdir()
    shutil.copytree(ROOT / "outputs" / "tables", tmp_path / "outputs" / "tables")
    kept_map = tmp_path / MAP
    kept_map.parent.mkdir(parents=True)
    shutil.copy(ROOT / MAP, kept_map)
    for page in (*PAGES, "outputs/claims.md"):
        shutil.copy(ROOT / page, tmp_path / page)
    shutil.copy(ROOT / "scripts" / "readme", tmp_path / "scripts")
    shutil.copytree(ROOT / "conf" / "compressor", tmp_path / "conf" / "compressor")
    shutil.copy(ROOT / "conf" / "families.yaml", tmp_path / "conf")
    (tmp_path / METHODS).parent.mkdir(parents=True)
    shutil.copy(ROOT / METHODS, tmp_path / METHODS)
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        row = re.search(r"<!-- outputs/tables/\S+\.md -->\n\|.*\n\|.*\n(\|.*\d.*)\n", text)
        if row is None:  # a page of links, such as that of the studies
            continue
        wrong = text.replace(row[1], re.sub(r"\d", "0", row[1]))
        (tmp_path / page).write_text(wrong, encoding="utf-8")
        assert f"{page} differs" in check(tmp_path).stderr
        (tmp_path / page).write_text(text, encoding="utf-8")

    content = json.loads(kept_map.read_text(encoding="utf-8"))
    for tick in content["ticks"]:
        tick["best"] = {"label": "Some", "value": 2.0, "low": 1.5, "high": 2.5, "why": ""}
    kept_map.write_text(json.dumps(content), encoding="utf-8")
    assert "README.md differs from outputs" in check(tmp_path).stderr
    shutil.copy(ROOT / MAP, kept_map)

    new = tmp_path / "conf" / "compressor" / "new.yaml"
    new.write_text("# @package _global_\n# New (Who et al., 2026): a thing.\n", encoding="utf-8")
    with (tmp_path / "conf" / "families.yaml").open("a", encoding="utf-8") as families:
        families.write("    new: [3, 'no', 'no']\n")
    assert f"{METHODS} differs" in check(tmp_path).stderr
    subprocess.run([sys.executable, str(tmp_path / "scripts" / "readme")], check=True)
    row = "- `new` (ours; 3 bits, all-gather): New (Who et al., 2026): a thing."
    assert row in (tmp_path / METHODS).read_text(encoding="utf-8")
    assert check(tmp_path).returncode == 0


@each("page", EVERY_PAGE)
def test_links_of_pages_lead_somewhere(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)|src=\"([^\"]+)", text)
    places = [place for pair in links for place in pair if place and "://" not in place]
    assert [link for link in places if not (ROOT / page.parent / link).exists()] == []


def test_the_page_of_functions_has_all_of_them() -> None:
    page = (ROOT / "scripts" / "pages" / "api.md").read_text(encoding="utf-8")
    assert set(re.findall(r":: gcbench\.(\w+)$", page, re.MULTILINE)) == {*gcbench.__all__}
    others = {path.stem for path in (ROOT / "gcbench" / "integrations").glob("[!_]*.py")}
    assert set(re.findall(r":: gcbench\.integrations\.(\w+)\.", page)) == others


def test_the_first_screen_has_the_commands_that_install_run_and_test() -> None:
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    commands = [line.partition("#")[0].strip() for line in first_screen]
    assert "pip install . && gcbench" in commands
    tests = "pip install '.[test]' && scripts/test"
    assert tests in commands
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert tests in [line.strip() for line in ci]


@each("page", [*map(str, EVERY_PAGE), *EVERY_TABLE])
def test_tables_of_pages_fit_100_columns(page: str) -> None:
    """Tables are read on terminals, too, where wider rows would wrap."""
    rows = (ROOT / page).read_text(encoding="utf-8").splitlines()
    assert [row for row in rows if row.startswith("|") and len(row) > PAGE_WIDTH] == []


@pytest.mark.parametrize("kept", FROM_RESULTS)
def test_a_kept_table_follows_from_the_kept_runs(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / kept).read_text(encoding="utf-8")
    name = Path(kept).relative_to("outputs/tables").with_suffix("").as_posix()
    table, _, budget = name.rpartition("-")
    arguments = (
        [f"table={table}", f"budget={budget}"] if budget in budget_names() else [f"table={name}"]
    )
    if typed := re.search(r"^With (.*) added to every row", text, re.MULTILINE):
        arguments += [f"with={override}" for override in typed[1].split()]
    monkeypatch.chdir(tmp_path)
    report([*arguments, f"results={ROOT / 'outputs/results'}", f"keep={tmp_path}", "format=csv"])
    again = (tmp_path / Path(kept).relative_to("outputs")).read_text(encoding="utf-8")
    assert [line for line in again.splitlines() if line.startswith("|")] == [
        line for line in text.splitlines() if line.startswith("|")
    ]


def test_the_kept_results_are_small() -> None:
    """Every clone contains them."""
    kept = subprocess.run(
        ["git", "ls-files", "outputs"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    if not kept:
        pytest.skip("no git checkout")
    assert sum((ROOT / path).stat().st_size for path in kept) < 6e6


LINKS = {Path(kept).stem: kept for kept in KEPT if "/links/" in kept}
PAGE_OF = {  # tables that are not by scripts/turns steps, and what makes them
    "cells": "cells",
    "grid": "grid",
    "predictions": "predictions",
    "reach": "reach",
    "sharded-100mbit-2": "sharded",
    "sharded-1gbit-2": "sharded",
}


def measured(name: str) -> dict[str, Any]:
    path = ROOT / "outputs/results/links" / f"{name}.json"
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


@each("name", sorted(LINKS.keys() - PAGE_OF))
def test_a_kept_table_of_steps_follows_from_its_measurements(name: str) -> None:
    facts = measured(name)
    for row in facts["rows"]:
        assert row["model_seconds"] == steps.predicted(
            row, facts["link"], facts["hosts"], facts["message_seconds"]
        )
    assert steps.page(facts) == (ROOT / LINKS[name]).read_text(encoding="utf-8")


@each("name", sorted(PAGE_OF.keys() & LINKS))
def test_a_kept_table_follows_from_its_measurements(name: str) -> None:
    page = import_module(f"lib.{PAGE_OF[name]}").page
    assert page(measured(name)) == (ROOT / LINKS[name]).read_text(encoding="utf-8")


def test_steps_within_15_percent_are_counted() -> None:
    def part(first: float, then: float) -> dict[str, Any]:
        rows = [
            {"method": name, "exchange": "", "step_seconds": 1.0 + i}
            | {"measured_step_seconds": seconds}
            for i, (name, seconds) in enumerate((("One, 4 bits", first), ("Two", then)))
        ]
        return {"link": "1gbit", "hosts": 2, "windows": 8, "rows": rows}

    text = reach.page({"parts": [part(1.1, 2.0), part(1.1, 1.0), part(2.0, 2.2)]})
    assert "4 of 6 steps are" in " ".join(text.split())
    assert "| 1gbit, 2x8 | One    |    1000.0 |   1100.0 |  1.10 |" in text
    assert all(len(line) <= PAGE_WIDTH for line in text.split("\n")[:9])


@pytest.mark.slow  # reads all runs
def test_the_kept_answer_follows_from_the_kept_runs() -> None:
    table = read_table("modern/ladder")
    answer = answer_of(table, group_runs(table, find_runs([ROOT / "outputs"]).runs, PAPER))
    assert answer
    kept = json.loads((ROOT / MAP).read_text(encoding="utf-8"))
    assert json.loads(json.dumps(as_json(answer))) == kept


@pytest.mark.slow  # composes every row twice
def test_the_map_is_measured_with_the_methods_of_its_rows() -> None:
    table = read_table(reach.TABLE)
    rows = group_runs(table, find_runs([ROOT / "outputs"]).runs, reach.BUDGET)
    race = race_of(table, rows)
    assert race is not None and len(race.contenders) == len(rows)
    for row, one in zip(rows, race.contenders, strict=True):
        typed = reach.overrides(one, next(iter(one.forms)))
        config = resolve(compose_overrides([*reach.MODEL, *typed])).as_dict()
        expected = compose_row(row.spec, row.budget).config
        for part in ("model", "compressor", "estimator"):
            assert config[part] == expected[part], row.spec.title


def test_a_page_of_chosen_links_says_so_and_leaves_the_full_one() -> None:
    facts = measured("predictions")
    some = [part for part in facts["parts"] if (part["link"], part["hosts"]) == ("1gbit", 4)]
    assert predictions.chosen(facts["parts"]) == []
    assert predictions.chosen(some) == ["1gbit", "4"]
    page = predictions.page(facts | {"parts": some})
    assert "`scripts/turns predictions --rates 1gbit --hosts 4 --rounds" in page


def test_a_link_without_a_rate_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["turns", "--rates", "1gbit,open"])
    with pytest.raises(SystemExit):
        predictions.main()
    assert "--rates 1gbit,open: open has no rate" in capsys.readouterr().err


def test_every_family_that_is_measured_is_predicted() -> None:
    sent = predictions.payloads()
    bits = {name: sum(m.bits for m in payload.at(2)) for name, payload in sent.items()}
    assert sent.keys() == predictions.FAMILIES.keys()
    assert bits.pop("dense") > 7 * max(bits.values()) > 0


def test_a_grid_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = next(p for p in measured("predictions")["parts"] if p["hosts"] == 2)
    asked: list[str] = []

    def on_hosts(case: str, rate: str, hosts: str, rounds: int) -> dict[str, Any]:
        asked.append(rate)
        if asked == grid.RATES[:2]:
            raise KeyboardInterrupt
        return {**part, "link": rate}

    monkeypatch.setattr(grid, "on_hosts", on_hosts)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["turns"])
    with pytest.raises(KeyboardInterrupt):
        grid.main()
    grid.main()
    assert asked == [*grid.RATES[:2], *grid.RATES[1:]]
    monkeypatch.setattr("sys.argv", ["turns", "--rates", "1gbit"])
    grid.main()
    assert asked[5:] == ["1gbit"]
    kept = find_link_table("links/grid", [tmp_path])
    assert kept is not None and len(kept.study["rows"]) == 4 * len(part["rows"])
    assert "28 of 28 steps are within 15 %" in capsys.readouterr().out
