"""The commands `gcbench report`, `gcbench runs` and `gcbench claims`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gcbench.config import PAPER, ConfigError
from gcbench.console import (
    TextTable,
    comma_separated,
    console,
    name_first,
    print_table,
    show_table,
    with_bar,
)
from gcbench.records.files import replace_file
from gcbench.records.store import FoundRuns, RecordedRun, find_begun, find_runs
from gcbench.report.arguments import Claims, Page, Report, Runs, Source, read_source
from gcbench.report.build import build, groups_of
from gcbench.report.claims import read_claims
from gcbench.report.claims_answers import answer_claim
from gcbench.report.claims_evidence import Evidence
from gcbench.report.claims_formats import keep_claims, show_claims
from gcbench.report.claims_missing import steps_of
from gcbench.report.compare import Comparison, compare, format_measured
from gcbench.report.deviations import list_deviations
from gcbench.report.document import Document
from gcbench.report.formats import show_document
from gcbench.report.keep import (
    keep_index,
    keep_runs,
    keep_study,
    keep_table,
    keep_tests,
    without_stopped,
)
from gcbench.report.listing import list_runs, list_tables, runs_frame
from gcbench.report.rows import RowsByBudget, refuse_unknown_keys
from gcbench.report.study import KeptStudy, find_study, study_document
from gcbench.report.tables import Table, read_table, tables_of
from gcbench.report.wandb_runs import load_wandb

log = logging.getLogger("gcbench")


def report(typed: Sequence[str]) -> None:
    """Print tables or draw figures. Raises ConfigError with one sentence for mistyped arguments."""
    if next((one for one in typed if "=" not in one), None) == "html":
        return _html(typed)
    arguments = read_source(Report, typed)
    first, *rest = arguments.plain or [""]
    if first == "list":
        _refuse_more("list", rest)
        print_table(list_tables(_load_runs(arguments), arguments.results))
    elif first == "diff":
        _diff(rest)
    elif first == "deviations":
        _refuse_more("deviations", rest)
        names = tables_of(arguments.table or "all")
        show_table(list_deviations([read_table(name) for name in names]), arguments.format)
    elif first in ("runs", "claims"):
        raise ConfigError(f"{first}: type gcbench {first}")
    elif first:
        raise ConfigError(
            f"{first}: type table=<paper>/<table>, or one of html, list, deviations, diff"
        )
    elif arguments.figure:
        _figures(arguments)
    elif arguments.table is None:
        raise ConfigError(
            "nothing was asked for; type table=powersgd/table4, gcbench report list, or gcbench "
            "report --help"
        )
    else:
        _tables(arguments)


def _load_runs(arguments: Source) -> list[RecordedRun]:
    read: FoundRuns = (
        load_wandb(str(arguments.project))
        if arguments.source == "wandb"
        else find_runs(arguments.results)
    )
    if arguments.source == "files" and isinstance(arguments, Report | Claims) and not read.runs:
        _warn_of_absent(arguments.results)
    read.warn()
    return read.runs


def _warn_of_absent(folders: Sequence[str]) -> None:
    """Warn about folders that do not exist, as a report without them looks as if runs were lost."""
    for folder in folders:
        if not Path(folder).exists():
            log.warning(
                "there is no folder %s; to read kept results, type results=path/to/gcbench/outputs",
                Path(folder).absolute(),
            )


def _load_reported(arguments: Report | Claims) -> list[RecordedRun]:
    """Return the runs of a report; one that is kept leaves out runs that were stopped."""
    runs = _load_runs(arguments)
    return without_stopped(runs) if arguments.keep else runs


def _tables(arguments: Report) -> None:
    tables = [read_table(name) for name in tables_of(str(arguments.table))]
    if arguments.beside and all(table.study for table in tables):
        raise ConfigError(
            f"with={arguments.beside[0]}: table={arguments.table} has the numbers of a study, "
            "which has no overrides; leave it out"
        )
    runs = _load_reported(arguments)
    alone = len(tables) == 1
    made = [_make(arguments, table, runs) for table in with_bar(tables, "tables")]
    behind = [run for one in made for run in _show(arguments, *one, alone)]
    if arguments.keep:
        kept = list(dict.fromkeys(behind))
        keep_runs(Path(arguments.keep), kept)
        keep_index(Path(arguments.keep))
        log.info("kept in %s, with %d runs", arguments.keep, len(kept))


def _figures(arguments: Report) -> None:
    from gcbench.report.figures.draw import draw  # imports matplotlib

    folder = Path(arguments.keep or arguments.folder) / "figures"
    for line in draw(
        str(arguments.figure),
        _load_runs(arguments),
        folder,
        arguments.budget,
        arguments.beside,
        arguments.results,
    ):
        print(line)


def _html(typed: Sequence[str]) -> None:
    arguments = read_source(Page, typed)
    _refuse_more("html", arguments.plain[1:])
    runs = _load_runs(arguments)
    if not runs:
        raise ConfigError(f"{arguments.place}: no runs there; type where there are some")
    from gcbench.report.page import build_page  # imports torch

    path = Path(arguments.file or arguments.folder / "report.html")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, build_page(runs).encode())
    print(f"{path}: {len(runs)} run{'s' * (len(runs) != 1)}; open it in a browser")


def _make(
    arguments: Report, table: Table, runs: Sequence[RecordedRun]
) -> tuple[Document, RowsByBudget, KeptStudy | None]:
    """Return a table's document, with its rows, or with the study that has its numbers."""
    if table.study:
        kept = find_study(table.study, arguments.results)
        return study_document(table, kept.study if kept else None), {}, kept
    groups = groups_of(table, runs, arguments.budget, arguments.beside)
    return build(table, groups, arguments.budget, arguments.beside), groups, None


def _show(
    arguments: Report, document: Document, groups: RowsByBudget, kept: KeptStudy | None, alone: bool
) -> list[RecordedRun]:
    """Print a table, write its page if `keep` was typed, and return the runs behind it.

    If several tables were asked for, those without any run at this budget are not kept.
    """
    show_document(document, arguments.format)
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


def runs(typed: Sequence[str]) -> None:
    """Print everything that ran."""
    arguments = read_source(Runs, typed)
    every = _load_runs(arguments)
    if begun := find_begun(arguments.results) if arguments.source == "files" else []:
        log.warning(
            "not listed, as they are running or were killed: %s; the command that began a run "
            "continues it",
            name_first(sorted(begun), 3),
        )
    if arguments.format == "csv":
        print(comma_separated(runs_frame(every)), end="")
    elif every:
        show_table(list_runs(every), arguments.format)
    else:
        print(
            f"{arguments.place}: no runs there; type gcbench for a first one, or gcbench runs "
            "FOLDER"
        )


def claims(typed: Sequence[str]) -> None:
    """Print the answers to the papers' claims, and write them to files if `keep` was typed."""
    arguments = read_source(Claims, typed)
    _refuse_more("claims", arguments.plain)
    if arguments.keep and (arguments.paper or arguments.id):
        raise ConfigError(
            f"keep={arguments.keep}: all claims are kept together; leave out paper= and id="
        )
    asked = read_claims(arguments.paper, arguments.id)
    evidence = Evidence(_load_reported(arguments), arguments.results, arguments.beside)
    paths = dict.fromkeys(p for claim in asked for part in claim.check.rows for p in part.paths)
    experiments = [str(evidence.spec(path).experiment) for path in paths]
    refuse_unknown_keys(arguments.beside, experiments, PAPER, "these claims")
    answered = [answer_claim(claim, evidence) for claim in with_bar(asked, "claims")]
    answered = [one._replace(steps=steps_of(one, evidence)) for one in answered]
    show_claims(answered, arguments.format)
    if arguments.keep:
        keep_claims(Path(arguments.keep), answered)
        for kept in filter(None, evidence.studies.values()):
            if not kept.study["study"].startswith(
                "links/"
            ):  # scripts/turns steps keeps these itself
                keep_study(Path(arguments.keep), kept.path)
        if evidence.tests:
            keep_tests(Path(arguments.keep), evidence.tests.path)


def _diff(rest: Sequence[str]) -> None:
    if len(rest) != 2:
        raise ConfigError(
            f"diff {' '.join(rest)}: type two run directories or trees, as in gcbench report diff "
            "outputs/a outputs/b"
        )
    comparisons = compare(*rest)
    output = console()
    for pair in comparisons.pairs:
        _print_comparison(pair, rest, output)
    for line in comparisons.alone:
        output.print(Text(line))


def _print_comparison(pair: Comparison, sides: Sequence[str], output: Console) -> None:
    output.print(Text(pair.title, style="bold"))
    for name, side in zip("AB", sides, strict=True):
        output.print(Text(f"{name} = {side}"))
    if pair.configuration:
        differences = TextTable(["configuration", "A", "B"], pair.configuration, left=range(3))
        print_table(differences, output)
    else:
        output.print("The same configuration.")
    for line in pair.statuses:
        output.print(Text(line))
    rows = [format_measured(line) for line in pair.measured]
    headings = ["measure", "A", "B", "deviations", "B - A", "scores"]
    print_table(TextTable(headings, rows, left=(0, 5)), output)


def _refuse_more(command: str, rest: Sequence[str]) -> None:
    if rest:
        raise ConfigError(f"{command} {rest[0]}: {command} takes keys only, as in results=outputs")
