"""The table files of the papers."""

from __future__ import annotations

import pytest

from gcbench.config import conf_directory
from gcbench.report import tables
from gcbench.report.tables import read_table, table_names

DIRECTORY = tables.table_directory()


def test_every_table_reads_and_finds_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "table_directory", lambda: DIRECTORY)
    names = table_names()
    assert names
    for table in map(read_table, names):
        assert table.rows and table.columns and table.source, table.name
        for experiment in table.experiments:
            assert (conf_directory() / "experiment" / f"{experiment}.yaml").is_file(), f"{table.name}: {experiment}"
