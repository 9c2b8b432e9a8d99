"""Tables, read from conf/table/<paper>/<table>.yaml and validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from gcbench.core.conf import Config, read_yaml
from gcbench.core.errors import ConfigError, near
from gcbench.core.fields import format_value
from gcbench.papers.ladder.ladder import Ladder
from gcbench.papers.track.track import Track
from gcbench.runner.conf_files import CHECKED, Texts, build_checked
from gcbench.runner.config.budget import budget_names
from gcbench.runner.config.choices import name_of, table_directory, tables_in
from gcbench.runner.report.document import Heading, digits_of
from gcbench.runner.report.measures import LOWER, MEASURES, SCORES

MEASURE_OF = {"steps_per_epoch": "data_mib_per_epoch", "network": "link_milliseconds"}
"""The measure that takes each argument of a column."""


@dataclass(frozen=True, config=CHECKED)
class Column:
    """A column of a table."""

    key: str
    title: str
    # A name in measures.py; for a study, a key of its rows, by default the key of the column.
    measure: str | None = None
    unit: str | None = None
    better: Literal["higher", "lower"] | None = None
    digits: int | None = None  # after the decimal point; null: as in the published numbers
    budget: str | None = None  # of the runs it is read from, if not the report's
    steps_per_epoch: int | None = None  # in the paper, for data_mib_per_epoch
    network: str | None = None  # between hosts, for link_milliseconds

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments of the measure."""
        values = {name: getattr(self, name) for name in MEASURE_OF}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def lower_is_better(self) -> bool:
        return self.better == "lower" if self.better else self.measure in LOWER


@dataclass(frozen=True, config=CHECKED)
class TableRow:
    """One row: what it runs, and overrides if it runs what another row does."""

    title: str
    # paper/table/name of a row with `runs`; null: a row with published numbers only
    experiment: str | None = None
    name: str | None = None  # in claims and reports; null: that of the experiment
    workers: int | None = None  # trainer.workers
    backend: str | None = None  # trainer.backend
    beside: Mapping[str, Any] = field(default_factory=dict)  # `with` in the file: other overrides
    # Overrides by budget that a smaller model needs, such as another share to send as many bytes.
    at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needs: str | None = None  # special hardware, besides what the experiment needs
    group: str | None = None
    # By column; a text if the paper has no number.
    published: Mapping[str, int | float | str | None] | None = None
    note: str | None = None

    @property
    def label(self) -> str:
        """Return the title with its group, because another group may have the same title."""
        return self.title if self.group in (None, "none") else f"{self.group}: {self.title}"

    @property
    def path(self) -> str | None:
        """Return paper/table/name, which means the same run in every table and claim."""
        if self.experiment is None or self.name is None:
            return self.experiment
        return f"{self.experiment.rpartition('/')[0]}/{self.name}"

    @property
    def settings(self) -> dict[str, Any]:
        """Return the keys and values that the row adds to its experiment."""
        columns = {"trainer.workers": self.workers, "trainer.backend": self.backend}
        return {k: v for k, v in columns.items() if v is not None} | dict(self.beside)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the overrides that the row adds to its experiment: `trainer.workers=16 rank=2`."""
        return overrides_of(self.settings)


HIDDEN = {"name", "runs"}  # all keys of a row that is not shown, and is only run by others
MADE_OF = ("experiment", "overrides", "at")  # attributes that determine what a row runs


@dataclass(frozen=True, config=CHECKED)
class TableFigure:
    """The figure of a table: its kind and axes, and the cluster of a study's predictions."""

    # null: the scores over the compression ratio, their curves, and the time to reach them
    kind: Literal["curves", "breakdown", "scaling", "histograms"] | None = None
    panels: Literal["group"] | None = None  # one panel per group of rows
    x: Texts = ()  # of curves: epoch, bits or seconds
    y: Texts = ()  # of curves: scores, errors, or train_loss
    optimum: dict[str, float] | None = None  # of curves, by group: the distance from this is drawn
    caption: str | None = None  # of a breakdown: the measure behind the name of each row
    gpus: tuple[int, ...] = ()
    gpus_per_node: int | None = None
    bandwidth_gbps: tuple[int, ...] = ()  # between nodes; the first is that of the table's rows

    @property
    def by_group(self) -> bool:
        return self.panels == "group"


@dataclass(frozen=True, config=CHECKED)
class Reach:
    """The targets of a table's score, and the clusters for which the time to them is computed."""

    targets: Mapping[str, tuple[float, ...]]  # by budget, the easiest first
    networks: Texts
    workers: tuple[int, ...]
    compute_seconds: float  # of a step, whatever the number of workers
    device: str  # whose codecs' seconds count
    bucket_mib: int = 1  # of whole gradients with overlap


@dataclass(frozen=True, config=CHECKED)
class Table:
    """One table or figure of a paper."""

    name: str  # paper/table
    title: str
    source: str
    columns: list[Column]
    rows: list[TableRow]
    spread: Literal["range", "deviation", "none"] = "range"  # how the paper prints the spread
    seeds: int | None = None  # number of seeds that the paper averages over
    notes: tuple[str, ...] = ()
    figure: TableFigure = TableFigure()
    reach: Reach | None = None  # the page shows times to targets in place of the columns
    ladder: Ladder | None = None  # every row is one of each size and number of workers
    track: Track | None = None  # runs of its row `entry` with another method are judged beside it
    study: str | None = None  # the study with the numbers, if not from training runs

    @property
    def experiments(self) -> list[str]:
        return [row.experiment for row in self.rows if row.experiment]

    def heading(self, column: Column, budget: str | None = None) -> Heading:
        """Return the heading of a column, with the column's budget if it is not `budget`."""
        published = [(row.published or {}).get(column.key) for row in self.rows]
        return Heading(
            column.key,
            column.title,
            column.unit,
            column.better,
            column.budget if budget and column.budget != budget else None,
            published=any(value is not None for value in published),
            digits=digits_of(published) if column.digits is None else column.digits,
            deviation=self.spread == "deviation",
        )

    @property
    def chooser(self) -> Column | None:
        """Return the first score without a budget of its own, which chooses learning rates."""
        return next((c for c in self.columns if c.measure in SCORES and c.budget is None), None)


def overrides_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return settings as overrides that Hydra parses back to the same values; 1.0 stays a float."""
    as_text = {k: v if isinstance(v, float) else format_value(v) for k, v in settings.items()}
    return tuple(f"{key}={value}" for key, value in as_text.items())


def table_names() -> list[str]:
    """Return paper/table of every table, without files of rows that only other tables show."""
    root = table_directory()
    return [
        name
        for name in tables_in(root)
        if re.search("^title:", (root / f"{name}.yaml").read_text(), re.MULTILINE)
    ]


def tables_of(asked: str, key: str = "table") -> list[str]:
    """Return the names of the tables that `table=asked` means: all, a paper's, one, or one's parts.

    Raises ConfigError, which names the key that was typed, if there is no such table.
    """
    names = table_names()
    if asked in names:
        return [asked]
    chosen = [
        name
        for name in names
        if asked in ("all", name.split("/")[0]) or name.startswith(f"{asked}_")
    ]
    if not chosen:
        papers = sorted({name.split("/")[0] for name in names})
        nearest = near(asked, names) or f"one of {', '.join(papers)}"
        raise ConfigError(f"{key}={asked}: there is no such table; type {nearest}, or all")
    return chosen


def read_table(name: str) -> Table:
    path = table_directory() / f"{name}.yaml"
    return _read_table(name, path, path.stat().st_mtime_ns)


@cache  # as a report of all runs asks for every table a dozen times
def _read_table(name: str, path: Path, _changed: int) -> Table:
    node = read_yaml(path)
    if not isinstance(node, dict):
        raise ConfigError(f"{path}: a table has title, source, columns and rows")
    columns = node.pop("columns", None) or {}
    every = node.pop("rows", None) or []
    if "ladder" in node:
        every = build_checked(Ladder, node["ladder"], path).rows(every, name, path)
    rows = [_named(row, name, path) for row in every if set(row) != HIDDEN]
    node.pop("settings", None)  # of what the rows run
    typed = node.pop("with", None) or {}  # added to every row
    notes = node.pop("notes", None) or []
    parts = {
        "columns": [{"key": key, **(column or {})} for key, column in columns.items()],
        "rows": [_read_row(row, typed) for row in rows],
        "notes": [_read_note(note, name, path) for note in notes],
    }
    table = build_checked(Table, {**node, **parts, "name": name}, path)
    _check(table, path)
    return table


def _read_note(note: str, table: str, path: Path) -> str:
    """Return the text of a note, which may be the name of one that a paper's tables share."""
    if not str(note).isidentifier():
        return note
    file = table_directory() / "notes.yaml"
    shared = _shared_notes(file).get(table.split("/")[0], {})
    if note not in shared:
        raise ConfigError(
            f"{path}: notes: {note}: no such note in {file}; "
            f"type {near(note, shared) or 'a sentence'}"
        )
    return shared[note]


@cache
def _shared_notes(path: Path) -> dict[str, dict[str, str]]:
    return read_yaml(path) if path.exists() else {}


def _named(row: Config, table: str, path: Path) -> Config:
    """Return a row that runs something with its experiment in place of what it runs."""
    if "runs" not in row:
        return row
    shown = {key: value for key, value in row.items() if key not in HIDDEN}
    return {"experiment": f"{table}/{name_of(row, path)}", **shown}


def _read_row(node: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's node, in which the table's overrides for all rows precede the row's own."""
    row = {key: value for key, value in node.items() if key != "with"}
    common = typed if row.get("experiment") else {}
    return {**row, "beside": {**common, **(node.get("with") or {})}}


def _check(table: Table, path: Path) -> None:
    if table.figure.kind == "curves" and not (table.figure.x and table.figure.y):
        raise ConfigError(f"{path}: figure.kind=curves draws y over x; type both below figure:")
    keys = {column.key for column in table.columns}
    for column in table.columns:
        if not table.study and column.measure not in MEASURES:
            raise ConfigError(
                f"{path}: measure={column.measure} of column {column.key} is not known; "
                f"type {near(str(column.measure), MEASURES) or ', '.join(MEASURES)}"
            )
        for name in column.settings:
            if column.measure != MEASURE_OF[name]:
                raise ConfigError(
                    f"{path}: {name} of column {column.key} belongs to measure: "
                    f"{MEASURE_OF[name]} only"
                )
    by_path: dict[str, TableRow] = {}
    for row in table.rows:
        same = by_path.setdefault(str(row.path), row)
        if row.path and not all(getattr(same, k) == getattr(row, k) for k in MADE_OF):
            raise ConfigError(
                f"{path}: two rows, {same.title} and {row.title}, have "
                f"name={row.path.rpartition('/')[2]} but run different things; rename one of them"
            )
        if unknown := set(row.at) - set(budget_names()):
            raise ConfigError(
                f"{path}: {row.title} has keys at budget={', '.join(sorted(unknown))}; type "
                f"{', '.join(budget_names())}"
            )
        if unknown := set(row.published or {}) - keys:
            raise ConfigError(
                f"{path}: {row.title} has {', '.join(sorted(unknown))} published, but there is no "
                "such column"
            )
