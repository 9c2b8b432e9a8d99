"""Build a report from a table and the runs of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gcbench.config import PAPER, conf_directory
from gcbench.config.directory import top_comment
from gcbench.identity import flat_differences, format_value
from gcbench.papers.configs import compose_row
from gcbench.papers.rates import RATE
from gcbench.papers.remarks import sections
from gcbench.papers.rows import Row, RowsByBudget, group_runs
from gcbench.papers.tables import Column, Table
from gcbench.records.store import RecordedRun
from gcbench.report.document import EMPTY, OTHER_BUDGET, Cell, Document, Line, Summary, marks_of
from gcbench.report.measures import TIMES


def build(
    table: Table, groups: RowsByBudget, budget: str, overrides: tuple[str, ...] = ()
) -> Document:
    """Return the report of a table at `budget`, which applies to columns that name no other budget.

    `groups` are the table's rows, grouped with the same budget and overrides.
    """
    rows = groups[budget]
    document = Document(
        name=table.name,
        title=table.title,
        under=[f"Source: {table.source}.", *_about_budgets(table, groups, budget, overrides)],
        headings=[table.heading(column, budget) for column in table.columns],
        lines=[_line(table, groups, i, row) for i, row in enumerate(rows)],
        sections=sections(table, groups, budget),
    )
    if table.reach is None:
        return document
    from gcbench.papers.reach import race_of, with_reach  # imports torch

    race = race_of(table, rows)
    return with_reach(document, race) if race else document


def groups_of(
    table: Table, runs: Sequence[RecordedRun], budget: str, overrides: tuple[str, ...] = ()
) -> RowsByBudget:
    """Return the rows by budget: first the report's budget, then those that its columns name.

    `overrides` are added to every experiment at the report's budget.
    """
    budgets = dict.fromkeys([budget, *(column.budget for column in table.columns if column.budget)])
    return {
        name: group_runs(table, runs, name, overrides if name == budget else ()) for name in budgets
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
    if row.spec.experiment is None:
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
