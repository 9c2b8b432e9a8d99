"""The commands `gcbench runs` and `gcbench report`, on any runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field
from rich.console import Console
from rich.text import Text

from gcbench.core.errors import ConfigError, name_first, near
from gcbench.runner.arguments import Arguments, Forms, read_arguments
from gcbench.runner.config.budget import PAPER, budget_names
from gcbench.runner.console import (
    FORMATS,
    TextTable,
    comma_separated,
    console,
    print_table,
    show_table,
)
from gcbench.runner.records.files import replace_file
from gcbench.runner.records.folders import RESULTS
from gcbench.runner.records.store import FoundRuns, RecordedRun, find_begun, find_runs
from gcbench.runner.report.compare import Comparison, compare, format_measured
from gcbench.runner.report.document import show_document
from gcbench.runner.report.listing import (
    list_configurations,
    list_runs,
    runs_frame,
)
from gcbench.runner.report.points import compare_points
from gcbench.runner.report.selection import in_order, refuse_unknown, select
from gcbench.runner.report.wandb_runs import load_wandb
from gcbench.runner.settings.groups import OneOf

if TYPE_CHECKING:
    from gcbench.runner.report.page import RacesOf, TablesOf

log = logging.getLogger("gcbench")

A = TypeVar("A", bound=Arguments)

WRITTEN = Path("outputs")  # where pages and pictures go: results may be another's, or only read
ALL = "all"
NAMED = 5  # names that a refusal lists

LIVE_SECONDS = 5  # after which a live page looks for new results, and a browser for a new page


class Source(Arguments):
    """The arguments that say where results are read from."""

    results: tuple[str, ...] = RESULTS
    """folders with run directories or kept runs, or files of these, separated by commas"""
    source: Annotated[str, OneOf(("files", "wandb"))] = "files"
    """files, or wandb"""
    project: str | None = None
    """entity/project, with source=wandb"""
    name: str | None = None
    """only the runs of this name, as a sweep with name=first gives to all of its runs"""

    @property
    def place(self) -> str:
        """Return what was typed about the place of runs: project=NAME, or results=FOLDERS."""
        if self.source == "wandb":
            return f"project={self.project}"
        return f"results={','.join(self.results)}"

    def check(self) -> None:
        """Raise ConfigError for a project without W&B, or the reverse, and for absent folders."""
        if (self.source == "wandb") != (self.project is not None):
            raise ConfigError(
                "source=wandb: type project=entity/project, too"
                if self.project is None
                else f"project={self.project}: type source=wandb, too"
            )
        for folder in self.results:
            if folder not in RESULTS and not Path(folder).exists():
                raise ConfigError(
                    f"results={folder}: there is no such folder; type one with runs in it"
                )

    def load(self) -> list[RecordedRun]:
        """Return the runs that are there, and warn of files that cannot be read."""
        read: FoundRuns = (
            load_wandb(str(self.project)) if self.source == "wandb" else find_runs(self.results)
        )
        read.warn()
        if self.name is None:
            return read.runs
        names = names_of(read.runs)
        if self.name not in names:
            known = near(self.name, names) or name_first(names, NAMED)
            raise ConfigError(
                f"name={self.name}: no run in {self.place} has that name; "
                + (f"type {known}" if names else "type name=NAME with the sweep, too")
            )
        return [run for run in read.runs if run.config.get("name") == self.name]


def names_of(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the names that were given to runs, the newest first."""
    return [*dict.fromkeys(name for run in reversed(runs) if (name := run.config.get("name")))]


class Page(Source):
    """Write everything that ran as one HTML page: curves, trade-offs, time to a goal on a link, a
    map of who reaches a score first, and a table of runs. It needs no server and no network; its
    URL keeps the choices made on it.
    """

    usage = "gcbench report html [key=value ...]"
    examples = """
gcbench report html                        outputs/report.html
gcbench report html results=old,new file=both.html
gcbench report html name=first live=true   beside a sweep that runs
"""

    file: str | None = None
    """where to write it; by default outputs/report.html"""
    live: bool = False
    """true: write it again whenever a run has ended, and have the browser read it again, until
    Ctrl-C"""


class Tables(Source):
    """Print the runs of a name as tables, with means and spreads over seeds."""

    usage = "gcbench report name=NAME | figure=runs [key=value ...] | html | diff A B"
    examples = """
gcbench report name=first                      your sweep name=first
gcbench report figure=runs name=first          its curves, trade-off and times as svg, png and pdf
gcbench report figure=which_method             accuracy against ratio, of everything that ran
gcbench report html                            everything that ran, as a page to look through
gcbench report diff A B                        two runs or trees: configuration, scores, bits, times
"""

    format: Annotated[str, OneOf(FORMATS), Field(description=", ".join(FORMATS))] = "terminal"


class Figures(Source):
    """Draw figures of any runs as svg, png and pdf."""

    usage = "gcbench report figure=runs | figure=which_method [key=value ...]"

    figure: Annotated[str, OneOf(("runs", "which_method"))] = "runs"
    """runs: curves, trade-off and times of every workload; which_method: accuracy against ratio"""
    budget: Annotated[
        str,
        OneOf(tuple(budget_names())),
        Field(description=f"whose runs to read: {', '.join(budget_names())}"),
    ] = PAPER


class Diff(Arguments):
    """Compare two runs or trees: configuration, scores, bits and times."""

    usage = "gcbench report diff A B"


REPORTS: Forms = {
    "gcbench report name=NAME": Tables,
    "gcbench report figure=NAME": Figures,
    "gcbench report html": Page,
    "gcbench report diff": Diff,
}


def form_of_report(typed: Sequence[str], forms: Forms, figures: type[A], tables: type[A]) -> Any:
    """Return the arguments of the report that was typed, which is one of the `forms`."""
    first = next((one for one in typed if "=" not in one and not one.startswith("-")), "")
    is_figure = any(one.startswith("figure=") for one in typed)
    kind = forms.get(f"gcbench report {first}", figures if is_figure else tables)
    return read_arguments(kind, typed, forms)


def report(typed: Sequence[str]) -> None:
    """Print tables or draw figures. Raises ConfigError with one sentence for mistyped arguments."""
    arguments = form_of_report(typed, REPORTS, Figures, Tables)
    first, *rest = arguments.plain or [""]
    match arguments:
        case Diff():
            diff(rest)
        case Page() if not rest:
            html(arguments, lambda budget: {}, lambda runs: [], lambda runs: [])
        case _ if first:
            raise ConfigError(f"{' '.join(arguments.plain)}: type name=NAME, html, or diff A B")
        case Figures():
            for line in draw_figures(arguments):
                print(line)
        case Tables(name=None):
            raise ConfigError(f"nothing was asked for; type {a_name(arguments)}")
        case Tables():
            print_points(arguments.load(), arguments.format)


def a_name(arguments: Source) -> str:
    """Return what to type for a sweep of one's own: name= with the names that there are."""
    own = [f"name={name}" for name in names_of(arguments.load())] or ["name=NAME"]
    return f"{name_first(own, NAMED)} for a sweep of yours"


def print_points(runs: Sequence[RecordedRun], style: str) -> None:
    for table in compare_points(runs):
        show_document(table, style)


def draw_figures(arguments: Figures) -> list[str]:
    from gcbench.runner.report.figures.draw import draw_runs  # imports matplotlib

    folder = WRITTEN / "figures" / (arguments.name or "")
    return draw_runs(arguments.figure, arguments.load(), folder, arguments.budget)


class Runs(Source):
    """List everything that ran: a line per configuration with its mean over seeds, or all runs.
    Any key of a run selects, and any key or measure sorts. A hash, that of a configuration's newest
    run, is what gcbench again takes.
    """

    usage = "gcbench runs [all] [FOLDER ...] [key=value ...] | rm HASH ... | where HASH"
    examples = """
gcbench runs compressor=qsgd,powersgd since=2d    what these methods did in the last two days
gcbench runs status=done sort=-accuracy           the best first
gcbench runs name=first                           the configurations of a sweep
gcbench runs all                                  every run, with its directory
gcbench runs format=csv                           every run with every measure
gcbench runs rm HASH ...                          removes runs
cd $(gcbench runs where HASH)                     the folder of a run
"""
    takes_other_keys = True

    since: str | None = None
    """only runs that ended after this: 30m, 12h, 2d, 1w ago, or a date such as 2026-01-31"""
    sort: str | None = None
    """key or measure, such as accuracy, seed or optimizer.lr, ascending; with - before it
    descending"""
    format: Annotated[str, OneOf(FORMATS)] = Field(
        "terminal", description=f"{', '.join(FORMATS)}; csv has every measure"
    )

    def check(self) -> None:
        """Take what is typed without a key for folders, and raise ConfigError for two places."""
        folders = [one for one in self.plain if one != ALL]
        if folders and "results" in self.given:
            raise ConfigError(
                f"{folders[0]} results={','.join(self.results)}: type the folders either "
                "alone or after results=, not both"
            )
        if self.source == "wandb" and (folders or "results" in self.given):
            raise ConfigError(
                f"{' '.join(folders or self.results)}: with source=wandb no folder is read; "
                "leave it out"
            )
        self.results = tuple(folders) or self.results
        super().check()


def runs(typed: Sequence[str]) -> None:
    """Print everything that ran."""
    arguments = read_arguments(Runs, typed)
    found = arguments.load()
    every = select(found, arguments.others, arguments.since, [*Runs.model_fields])
    if arguments.sort:
        refuse_unknown("sort=", arguments.sort, "", found)
    if begun := find_begun(arguments.results) if arguments.source == "files" else []:
        log.warning(
            "not listed, as they are running or were killed: %s; gcbench again FOLDER continues a "
            "killed one",
            name_first(sorted(begun), 3),
        )
    if arguments.format == "csv":
        ordered = in_order([[run] for run in every], arguments.sort) if arguments.sort else ()
        print(comma_separated(runs_frame([run for (run,) in ordered] or every)), end="")
    elif every and ALL in arguments.plain:
        show_table(list_runs(every, arguments.sort), arguments.format)
    elif every:
        show_table(list_configurations(every, arguments.sort), arguments.format)
    elif found:
        print(f"{arguments.place}: no run is all of this; leave out some of what you typed")
    else:
        print(
            f"{arguments.place}: no runs there; type gcbench for a first one, or gcbench runs "
            "FOLDER"
        )


def html(arguments: Page, tables_of: TablesOf, races_of: RacesOf, answers_of: RacesOf) -> None:
    """Write the page; its tables and its maps, which are of the papers, come from the caller."""
    runs = arguments.load()
    if not runs and not arguments.live:
        raise ConfigError(f"{arguments.place}: no runs there; type where there are some")
    from gcbench.runner.report.page import build_page  # imports torch

    path = Path(arguments.file or WRITTEN / "report.html")
    path.parent.mkdir(parents=True, exist_ok=True)
    makers, again = (tables_of, races_of, answers_of), LIVE_SECONDS if arguments.live else None
    replace_file(path, build_page(runs, *makers, again).encode())
    print(f"{path}: {len(runs)} run{'s' * (len(runs) != 1)}; open it in a browser", flush=True)
    while arguments.live:
        time.sleep(LIVE_SECONDS)
        newer = arguments.load()
        if [run.result.finished for run in newer] != [run.result.finished for run in runs]:
            runs = newer
            replace_file(path, build_page(runs, *makers, again).encode())


def diff(folders: Sequence[str]) -> None:
    """Print how two run directories, or two trees of them, differ."""
    if len(folders) != 2:
        raise ConfigError(
            f"diff {' '.join(folders)}: type two run directories or trees, as in gcbench report "
            "diff outputs/a outputs/b"
        )
    comparisons = compare(*folders)
    output = console()
    for pair in comparisons.pairs:
        _print_comparison(pair, folders, output)
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
