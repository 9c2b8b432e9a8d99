"""The commands `gcbench report`, `gcbench papers tables` and `gcbench papers deviations`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from gcbench.core.errors import ConfigError
from gcbench.papers.tables.build import build, groups_of, list_deviations, list_tables
from gcbench.papers.tables.configs import tables_by_identity
from gcbench.papers.tables.keep import (
    keep_index,
    keep_runs,
    keep_study,
    keep_table,
    without_stopped,
)
from gcbench.papers.tables.measured import KeptStudy, find_study, study_document
from gcbench.papers.tables.rows import RowsByBudget
from gcbench.papers.tables.tables import Table, read_table, tables_of
from gcbench.runner.arguments import Arguments, Forms, read_arguments
from gcbench.runner.config.budget import PAPER, budget_names
from gcbench.runner.console import FORMATS, print_table, show_table, with_bar
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.command import (
    WRITTEN,
    Diff,
    Page,
    Source,
    a_name,
    diff,
    form_of_report,
    html,
    print_points,
)
from gcbench.runner.report.document import Document, brief, show_document
from gcbench.runner.settings.groups import OneOf

log = logging.getLogger("gcbench")

WITH = (
    "an override added to every experiment of the budget, for example "
    "with=trainer.precision=bf16; may be repeated"
)


class OfPapers(Source):
    """The arguments of what stands beside the papers' numbers."""

    keep: str | None = None
    """a folder for what is printed and the results behind it, as in keep=outputs"""
    beside: tuple[str, ...] = Field((), description=WITH, alias="with")

    def check(self) -> None:
        """Raise ConfigError for an override without a value.

        What is kept already is read, too, so that no page loses the runs that it was made of.
        """
        super().check()
        if self.keep and Path(self.keep).exists():
            self.results = tuple(dict.fromkeys((*self.results, self.keep)))
        for override in self.beside:
            if not all(override.partition("=")):
                raise ConfigError(
                    f"with={override}: type a key and a value after with=, "
                    "for example with=trainer.precision=bf16"
                )

    def load(self) -> list[RecordedRun]:
        """Return the runs of a report; one that is kept leaves out runs that were stopped."""
        runs = _load(self)
        return without_stopped(runs) if self.keep else runs


Budget = Annotated[
    str,
    OneOf(tuple(budget_names())),
    Field(description=f"whose runs to read: {', '.join(budget_names())}"),
]
Format = Annotated[str, OneOf(FORMATS), Field(description=", ".join(FORMATS))]


class Tables(OfPapers):
    """Print results beside the papers' numbers, as tables and figures; reads result files only."""

    usage = "gcbench report name=NAME | table=NAME | figure=NAME [key=value ...] | html | diff A B"
    examples = """
gcbench report name=first format=latex         your sweep name=first: means and spread over seeds
gcbench report figure=runs name=first          its curves, trade-off and times as svg, png and pdf
gcbench report table=powersgd/table4           ours beside the paper's, and what to run
gcbench report table=powersgd budget=cpu       all tables of a paper, from runs of budget=cpu
gcbench report table=orq/table2 format=latex   or markdown, csv
gcbench report table=all keep=outputs          as files, with the results behind them
gcbench report figure=orq/figure2 budget=cpu   curves, breakdowns and trade-offs as pictures
gcbench report figure=which_method             accuracy against ratio, of everything that ran
gcbench report html                            everything that ran, as a page to look through
gcbench report diff A B                        two runs or trees: configuration, scores, bits, times
"""

    table: str | None = None
    """powersgd/table4, or powersgd for all of a paper, or all"""
    budget: Budget = PAPER
    format: Format = "terminal"
    keep: str | None = None
    """a folder for the tables and the results behind them, as in keep=outputs"""
    verbose: bool = False
    """true: on a terminal, too, all that other formats and kept pages have: missing and other runs,
    learning rates, notes, commands, machines"""


class Figures(OfPapers):
    """Draw figures as svg, png and pdf, beside the papers' numbers or of everything that ran."""

    usage = "gcbench report figure=NAME [key=value ...]"

    figure: str = ""
    """a table or paper, a study, which_method, runs, or all: as svg, png and pdf in figures/ below
    keep=, or in outputs/figures"""
    budget: Budget = PAPER
    keep: str | None = None
    """a folder for the figures, as svg and png, as in keep=outputs"""


class List(Source):
    """List all tables, and how many of their rows have runs, by budget."""

    usage = "gcbench papers tables [key=value ...]"


class Deviations(Arguments):
    """List settings in which rows deviate from their paper."""

    usage = "gcbench papers deviations [key=value ...]"

    table: str = "all"
    """powersgd/table4, or powersgd for all of a paper, or all"""
    format: Format = "terminal"


REPORTS: Forms = {
    "gcbench report table=NAME": Tables,
    "gcbench report figure=NAME": Figures,
    "gcbench report html": Page,
    "gcbench report diff": Diff,
}


# What belongs to other commands.
OTHERS = {
    "runs": "gcbench runs",
    "claims": "gcbench papers claims",
    "list": "gcbench papers tables",
    "deviations": "gcbench papers deviations",
}


def tables(typed: Sequence[str]) -> None:
    """List all tables. Raises ConfigError with one sentence for mistyped arguments."""
    arguments = read_arguments(List, typed)
    _refuse_plain("tables", arguments)
    print_table(list_tables(_load(arguments), arguments.results))


def deviations(typed: Sequence[str]) -> None:
    """List deviations. Raises ConfigError with one sentence for mistyped arguments."""
    arguments = read_arguments(Deviations, typed)
    _refuse_plain("deviations", arguments)
    asked = [read_table(name) for name in tables_of(arguments.table)]
    show_table(list_deviations(asked), arguments.format)


def _refuse_plain(name: str, arguments: Arguments) -> None:
    if arguments.plain:
        raise ConfigError(
            f"{name} {arguments.plain[0]}: {name} takes keys only, as in results=outputs"
        )


def report(typed: Sequence[str]) -> None:
    """Print tables or draw figures. Raises ConfigError with one sentence for mistyped arguments."""
    arguments = form_of_report(typed, REPORTS, Figures, Tables)
    first, *rest = arguments.plain or [""]
    match arguments:
        case Page() if rest:
            raise ConfigError(f"html {rest[0]}: html takes keys only, as in results=outputs")
        case Page():
            html(arguments, tables_by_identity, races, answers)
        case Diff():
            diff(rest)
        case _ if first:
            raise ConfigError(
                f"{first}: type {OTHERS[first]}"
                if first in OTHERS
                else f"{first}: type table=<paper>/<table>, or one of html, diff"
            )
        case Figures():
            _draw(arguments)
        case Tables(table=None, name=None):
            raise ConfigError(
                f"nothing was asked for; type {a_name(arguments)}, table=powersgd/table4, gcbench "
                "papers tables, or gcbench report --help"
            )
        case Tables(table=None):
            for key in {"keep", "beside", "verbose"} & {*arguments.given}:
                raise ConfigError(f"name={arguments.name}: type table=, too, or leave out {key}=")
            asked = {arguments.budget} if "budget" in arguments.given else {*budget_names()}
            print_points([run for run in arguments.load() if run.budget in asked], arguments.format)
        case Tables(table=str(asked)):
            _print(arguments, asked)


def _load(arguments: Source) -> list[RecordedRun]:
    """Return runs; warn of absent folders, as a report without them looks as if runs were lost."""
    runs = Source.load(arguments)
    for folder in arguments.results if arguments.source == "files" and not runs else ():
        if not Path(folder).exists():
            log.warning(
                "there is no folder %s; to read kept results, type results=path/to/gcbench/outputs",
                Path(folder).absolute(),
            )
    return runs


def races(runs: Sequence[RecordedRun]) -> Iterator[dict[str, Any]]:
    """Yield what a page needs to draw the maps of all tables with such runs."""
    from gcbench.papers.reach.reach_map import races_of  # imports torch

    return races_of(runs)


def answers(runs: Sequence[RecordedRun]) -> Iterator[dict[str, Any]]:
    """Yield what a page needs to draw the maps of all ladders with such runs."""
    from gcbench.papers.ladder.ladder_map import answers_of  # imports torch

    return answers_of(runs)


def _print(arguments: Tables, asked: str) -> None:
    tables = [read_table(name) for name in tables_of(asked)]
    if arguments.beside and all(table.study for table in tables):
        raise ConfigError(
            f"with={arguments.beside[0]}: table={asked} has the numbers of a study, which has no "
            "overrides; leave it out"
        )
    runs = arguments.load()
    studies = [table.study for table in tables if table.study]
    kept_any = any(find_study(study, arguments.results) for study in studies)
    if tables[1:] and not (runs or kept_any):
        # Tables with the papers' numbers alone are many pages, and hide that nothing was found.
        raise ConfigError(
            f"table={asked}: no runs in {arguments.place}, looked for in {Path.cwd()}; type "
            "results=FOLDER, as in results=path/to/gcbench/outputs"
        )
    alone = len(tables) == 1
    made = [_make(arguments, table, runs) for table in with_bar(tables, "tables")]
    behind = [run for one in made for run in _show(arguments, *one, alone)]
    if arguments.keep:
        kept = list(dict.fromkeys(behind))
        keep_runs(Path(arguments.keep), kept)
        keep_index(Path(arguments.keep))
        log.info("kept in %s, with %d runs", arguments.keep, len(kept))


def _draw(arguments: Figures) -> None:
    from gcbench.papers.figures.figures import draw
    from gcbench.runner.drawing import KEPT_KINDS, KINDS  # imports matplotlib

    folder = Path(arguments.keep or WRITTEN) / "figures" / (arguments.name or "")
    for line in draw(
        arguments.figure,
        _load(arguments),
        folder,
        arguments.budget,
        arguments.beside,
        arguments.results,
        KEPT_KINDS if arguments.keep else KINDS,
    ):
        print(line)


def _make(
    arguments: Tables, table: Table, runs: Sequence[RecordedRun]
) -> tuple[Document, RowsByBudget, KeptStudy | None]:
    """Return a table's document, with its rows, or with the study that has its numbers."""
    if table.study:
        kept = find_study(table.study, arguments.results)
        return study_document(table, kept.study if kept else None), {}, kept
    groups = groups_of(table, runs, arguments.budget, arguments.beside)
    return build(table, groups, arguments.budget, arguments.beside), groups, None


def _show(
    arguments: Tables, document: Document, groups: RowsByBudget, kept: KeptStudy | None, alone: bool
) -> list[RecordedRun]:
    """Print a table, write its page if `keep` was typed, and return the runs behind it.

    If several tables were asked for, those without any run at this budget are not kept.
    """
    short = arguments.format == "terminal" and not arguments.verbose
    show_document(brief(document) if short else document, arguments.format)
    has_run = any(row.every_run for row in groups.get(arguments.budget, []))
    if not (alone or has_run or (kept and arguments.budget == PAPER)):
        return []
    if arguments.keep:
        keep_table(Path(arguments.keep), document, arguments.budget if groups else PAPER)
        if kept:
            keep_study(Path(arguments.keep), kept.path)
    return list(
        dict.fromkeys(run for rows in groups.values() for row in rows for run in row.every_run)
    )
