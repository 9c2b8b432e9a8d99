"""Settings that the papers print, and rows that deviate from them, from conf/deviations.yaml."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from gcbench.config import conf_directory, read_yaml
from gcbench.config.directory import build_checked
from gcbench.console import TextTable
from gcbench.report.tables import Table


class Setting(BaseModel):
    """A setting that a paper prints for some rows, and our value if it differs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rows: list[str]  # tables, or rows that they run
    key: str | None = None
    paper: Any
    ours: Any = None
    why: str | None = None

    @property
    def deviates(self) -> bool:
        return "ours" in self.model_fields_set

    def covers(self, experiment: str) -> bool:
        return any(experiment == row or experiment.startswith(f"{row}/") for row in self.rows)

    @property
    def text(self) -> str:
        paper = "nothing" if self.paper is None else self.paper
        setting = f"{self.key}: " if self.key else ""
        return f"{setting}the paper has {paper}, ours is {self.ours}: {self.why}"


def read_settings() -> list[Setting]:
    """Return all settings. Raises ConfigError if an entry is invalid."""
    path = conf_directory() / "deviations.yaml"
    return [build_checked(Setting, node, path) for node in read_yaml(path)]


def deviations_of(table: Table) -> list[tuple[Setting, list[str]]]:
    """Return the deviations of a table, each with its rows' titles, or no titles if all deviate."""
    deviations = []
    for setting in read_settings():
        rows = [row for row in table.rows if row.experiment and setting.covers(row.experiment)]
        if setting.deviates and rows:
            titles = [] if len(rows) == len(table.rows) else [row.label for row in rows]
            deviations.append((setting, list(dict.fromkeys(titles))))
    return deviations


def list_deviations(tables: list[Table]) -> TextTable:
    """Return a line for each deviation of each table."""
    lines = [
        [
            table.name,
            ", ".join(titles) or "all",
            setting.key or "-",
            str(setting.paper),
            str(setting.ours),
            str(setting.why),
        ]
        for table in tables
        for setting, titles in deviations_of(table)
    ]
    return TextTable(["table", "rows", "key", "paper", "ours", "why"], lines, left=range(6))
