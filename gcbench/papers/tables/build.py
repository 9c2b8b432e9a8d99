"""Reports of tables from the runs of their rows, and the lists of tables and of deviations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from gcbench.core.conf import conf_directory, read_yaml
from gcbench.core.fields import format_value
from gcbench.papers.tables.configs import compose_row
from gcbench.papers.tables.measured import find_study
from gcbench.papers.tables.rates import RATE
from gcbench.papers.tables.remarks import sections
from gcbench.papers.tables.rows import Row, RowsByBudget, group_runs
from gcbench.papers.tables.tables import Column, Table, read_table, table_names
from gcbench.papers.track.track_verdicts import entries_of, with_verdicts
from gcbench.runner.conf_files import build_checked, top_comment
from gcbench.runner.config.budget import PAPER, budget_names
from gcbench.runner.console import TextTable
from gcbench.runner.differences import flat_differences
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.document import (
    EMPTY,
    OTHER_BUDGET,
    Cell,
    Document,
    Line,
    Summary,
    marks_of,
)
from gcbench.runner.report.measures import TIMES


def build(
    table: Table, groups: RowsByBudget, budget: str, overrides: tuple[str, ...] = ()
) -> Document:
    """Return the report of a table at `budget`, which applies to columns that name no other budget.

    `groups` are the table's rows, grouped with the same budget and overrides.
    """
    rows = groups[budget]
    deviations = [
        f"{', '.join(titles) or 'All rows'}: {setting.text}"
        for setting, titles in deviations_of(table)
    ]
    document = Document(
        name=table.name,
        title=table.title,
        under=[f"Source: {table.source}.", *_about_budgets(table, groups, budget, overrides)],
        headings=[table.heading(column, budget) for column in table.columns],
        lines=[_line(table, groups, i, row) for i, row in enumerate(rows)],
        sections=sections(table, groups, budget, deviations),
    )
    if table.ladder:
        from gcbench.papers.ladder.ladder_fit import fits_of, with_fits  # imports matplotlib

        fits = fits_of(table.ladder, rows)
        return with_fits(document, table.ladder, fits) if fits else document
    if table.track:
        return with_verdicts(document, table.track, rows)
    if table.reach is None:
        return document
    from gcbench.papers.reach.reach import race_of, with_reach  # imports torch

    race = race_of(table, rows, [same for name, same in groups.items() if name != budget])
    return with_reach(document, race) if race else document


def groups_of(
    table: Table, runs: Sequence[RecordedRun], budget: str, overrides: tuple[str, ...] = ()
) -> RowsByBudget:
    """Return the rows by budget: first the report's budget, then those that its columns name.

    `overrides` are added to every experiment at the report's budget.
    """
    lengths = table.reach.targets if table.reach and budget in table.reach.targets else ()
    named = (column.budget for column in table.columns if column.budget)
    budgets = dict.fromkeys([budget, *named, *lengths])
    return {
        name: [
            *group_runs(table, runs, name, overrides if name == budget else ()),
            *entries_of(table, runs, name),
        ]
        for name in budgets
    }


def _line(table: Table, groups: RowsByBudget, index: int, row: Row) -> Line:
    cells = [_cell(column, groups[column.budget or row.budget][index]) for column in table.columns]
    return Line(
        row.spec.label, row.spec.group, row.spec.path, cells, _seeds(row), _stand_in_ratio(row)
    )


def _cell(column: Column, row: Row) -> Cell:
    published = (row.spec.published or {}).get(column.key)
    values = row.values(str(column.measure), **column.settings)
    if values:
        return Cell(Summary.of(values), published)
    statuses = dict.fromkeys(run.status for run in row.unfinished)
    if statuses and not row.done:
        return Cell(None, published, ", ".join(statuses))
    return Cell(None, published, "no times" if row.done and column.measure in TIMES else EMPTY)


def _seeds(row: Row) -> str:
    if row.spec.experiment is None and not row.runs:
        return "published only"
    done = ", ".join(_seed(run) for run in row.done)
    facts = [*([done] if done else []), *(f"{_seed(r)} {r.status}" for r in row.unfinished)]
    if row.grid and row.grid.chosen is not None:
        tries = f"the best of {len(row.grid.rates)} in {row.grid.tries} tries"
        part = f" on {row.grid.split}" if row.grid.validated else ""
        facts.append(f"lr {row.grid.chosen:g}, {tries}{part}")
    return "; ".join(facts) or "missing"


def _stand_in_ratio(row: Row) -> float | None:
    """Return the compression ratio on the stand-in model; None if the row has the paper's model.

    It may be far from the ratio on the paper's model: a rank that is low there is not low for a
    small model.
    """
    values = row.values("ratio") if row.stand_in else []
    return fmean(values) if values else None


def _seed(run: RecordedRun) -> str:
    return f"{run.seed}{marks_of([run])}"


def _about_budgets(
    table: Table, groups: RowsByBudget, budget: str, overrides: tuple[str, ...]
) -> list[str]:
    lines = [f"Budget {budget}: {_about(budget)}", *_list_differences(groups[budget])]
    lines += [f"With {' '.join(overrides)} added to every row."] if overrides else []
    for name in groups:
        if name != budget:
            titles = ", ".join(column.title for column in table.columns if column.budget == name)
            lines.append(f"{OTHER_BUDGET} {titles}: budget={name}. {_about(name)}")
    return lines


def _about(budget: str) -> str:
    """Return the first line of the comment at the top of the budget's file."""
    return top_comment(conf_directory() / "budget" / f"{budget}.yaml")[0]


def _list_differences(rows: Sequence[Row]) -> list[str]:
    """Return how rows differ from the paper's configuration, first in what all have in common."""
    differences = {
        row.spec.label: _differences(row) for row in rows if row.spec.experiment is not None
    }
    every = list(differences.values())
    common = [one for one in every[0] if all(one in others for others in every)] if every else []
    labels_by_rest: dict[str, list[str]] = {}
    for label, ours in differences.items():
        rest = ", ".join(one for one in ours if one not in common)
        labels_by_rest.setdefault(rest, []).append(label)
    lines = [f"All rows: {', '.join(common)}."] if common else []
    return lines + [
        f"{rest}: {'; '.join(labels)}." for rest, labels in labels_by_rest.items() if rest
    ]


def _differences(row: Row) -> list[str]:
    """Return how a row differs from the paper, for example `trainer.epochs=3 in place of 300`."""
    if row.budget == PAPER:
        return []
    paper = compose_row(row.spec)
    at_budget = compose_row(row.spec, row.budget)
    chosen = {RATE: row.grid.chosen} if row.grid and row.grid.chosen is not None else {}
    differs = {
        key: values
        for key, values in flat_differences({**at_budget.flat, **chosen}, paper.flat).items()
        if not key.startswith("model.")
    }
    if at_budget.choices["model"] != paper.choices["model"]:
        differs = {"model": (at_budget.choices["model"], paper.choices["model"]), **differs}
    return [
        f"{key}={format_value(ours)} in place of {format_value(papers)}"
        for key, (ours, papers) in differs.items()
    ]


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


def list_tables(runs: Sequence[RecordedRun], folders: Sequence[str | Path]) -> TextTable:
    """Return one line per table, with how many of its rows have a run that is done, by budget."""
    by_budget = {name: [run for run in runs if run.budget == name] for name in budget_names()}
    lines = []
    for name in table_names():
        table = read_table(name)
        if table.study:
            done = "study" if find_study(table.study, folders) else "study, not run"
        else:
            counts = {
                budget: sum(bool(row.done) for row in group_runs(table, some, budget))
                for budget, some in by_budget.items()
            }
            done = ", ".join(f"{budget} {count}" for budget, count in counts.items() if count)
        lines.append([name, str(len(table.rows)), done or EMPTY, table.title])
    headings = ["table", "rows", "of them done", "title"]
    return TextTable(headings, lines, left=(0, 2, 3), below=1)
