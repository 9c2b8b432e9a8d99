"""Settings that the papers print, and where rows deviate from them: conf/deviations.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from gcbench.config import ConfigError, conf_directory
from gcbench.console import TextTable
from gcbench.report.configs import compose, read_key
from gcbench.report.tables import Table


class Setting(BaseModel):
    """A setting that a paper prints for some rows, and what ours is where it differs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rows: list[str]  # folders of conf/experiment, or rows there
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
    """Return all settings; ConfigError names an entry that is none."""
    path = conf_directory() / "deviations.yaml"
    try:
        return [Setting(**node) for node in yaml.safe_load(path.read_text(encoding="utf-8"))]
    except ValidationError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


def deviations_of(table: Table) -> list[tuple[Setting, list[str]]]:
    """Return the deviations of a table, each with its rows' titles; none for all of them."""
    found = []
    for setting in read_settings():
        rows = [row for row in table.rows if row.experiment and setting.covers(row.experiment)]
        if setting.deviates and rows:
            titles = [] if len(rows) == len(table.rows) else [row.label for row in rows]
            found.append((setting, list(dict.fromkeys(titles))))
    return found


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


def find_contradictions() -> Iterator[str]:
    """Yield a sentence for each setting that a row resolves to and the file denies."""
    root = conf_directory() / "experiment"
    experiments = sorted(
        str(path.relative_to(root).with_suffix("")) for path in root.glob("*/*/*.yaml")
    )
    for setting in read_settings():
        rows = [experiment for experiment in experiments if setting.covers(experiment)]
        if not rows:
            yield f"{', '.join(setting.rows)}: there are no such rows"
        if setting.deviates and (setting.ours == setting.paper or not setting.why):
            yield f"{setting.key} of {setting.rows[0]}: ours is the paper's, or has no reason"
        for experiment in rows if setting.key else ():
            value = read_key(compose(experiment).config, str(setting.key))
            stated = setting.ours if setting.deviates else setting.paper
            if value != stated:
                yield f"{experiment}: {setting.key} is {value}, and {stated} is stated"
