"""README shows the numbers that are kept, and those can be made again from the results behind them."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gcbench.report.command import report

ROOT = Path(__file__).parents[2]
KEPT = sorted(re.findall(r"<!-- (outputs/tables/\S+\.md) -->", (ROOT / "README.md").read_text(encoding="utf-8")))


# One at the papers' budget and one at a smaller one; the others, which take seconds each, are slow.
QUICK = {"outputs/tables/ecqsgd/table1_a9a/table.md", "outputs/tables/powersgd/table3_cifar10/cpu/table.md"}
FROM_RESULTS = [pytest.param(kept, marks=() if kept in QUICK else pytest.mark.slow) for kept in KEPT if "/links/" not in kept]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(root / "scripts" / "readme"), "--check"], capture_output=True, text=True)


def test_readme_has_the_numbers_of_the_kept_tables(tmp_path: Path) -> None:
    assert set(KEPT) > QUICK and check(ROOT).returncode == 0
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "readme", tmp_path / "scripts")
    shutil.copytree(ROOT / "outputs" / "tables", tmp_path / "outputs" / "tables")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    row = re.search(r"<!-- outputs/tables/\S+\.md -->\n\|.*\n\|.*\n(\|.*\d.*)\n", text)
    assert row is not None
    (tmp_path / "README.md").write_text(text.replace(row[1], re.sub(r"\d", "0", row[1])), encoding="utf-8")
    assert "README.md differs" in check(tmp_path).stderr


@pytest.mark.parametrize("kept", FROM_RESULTS)
def test_a_kept_table_follows_from_the_results_behind_it(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = (ROOT / kept).parent
    paper, table, *budget = folder.relative_to(ROOT / "outputs" / "tables").parts
    monkeypatch.chdir(tmp_path)
    words = [f"budget={budget[0]}"] if budget else []
    report([f"table={paper}/{table}", *words, f"results={folder}", f"keep={tmp_path}", "format=csv"])
    again = (tmp_path / folder.relative_to(ROOT / "outputs" / "tables") / "table.csv").read_text(encoding="utf-8")
    assert again == (folder / "table.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("kept", [kept for kept in KEPT if "/links/" in kept])
def test_a_kept_table_of_steps_follows_from_its_measurements(kept: str) -> None:
    steps = runpy.run_path(str(ROOT / "scripts" / "steps"))
    facts = json.loads((ROOT / kept).with_suffix(".json").read_text(encoding="utf-8"))
    model = Path(kept).name.split("-")[0]
    for row in facts["rows"]:
        assert row["model_seconds"] == steps["predicted"](row, facts["link"], facts["hosts"], facts["message_seconds"])
    assert steps["page"](facts, model) == (ROOT / kept).read_text(encoding="utf-8")
