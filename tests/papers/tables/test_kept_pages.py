"""The kept pages show every kept run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcbench.papers.tables import tables
from gcbench.papers.tables.build import groups_of
from gcbench.runner.config.budget import PAPER
from gcbench.runner.records.store import find_runs

pytestmark = pytest.mark.usefixtures("here")

ROOT = Path(__file__).parents[3]
TABLES = tables.table_directory()


@pytest.mark.slow
def test_every_kept_run_is_on_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "table_directory", lambda: TABLES)  # not this folder's small ones
    runs = find_runs([ROOT / "outputs"]).runs
    left = set(runs)
    for table in map(tables.read_table, tables.table_names()):
        for budget in {run.budget for run in runs} if not table.study else ():
            ending = "" if budget == PAPER else f"-{budget}"
            if (ROOT / f"outputs/tables/{table.name}{ending}.md").exists():
                rows = groups_of(table, runs, budget).values()
                left -= {run for group in rows for row in group for run in row.every_run}
    assert runs and not left, sorted({f"{run.experiment} {run.budget}" for run in left})
