"""The arguments typed after `gcbench report`, `gcbench runs` and `gcbench claims`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from gcbench.config import (
    PAPER,
    Arguments,
    ConfigError,
    budget_names,
    read_arguments,
    refuse_unread,
)
from gcbench.console import FORMATS
from gcbench.report.claims_formats import WRITERS as CLAIMS_WRITERS
from gcbench.settings.marks import OneOf

RESULTS = ("outputs",)
WITH = (
    "an override added to every experiment of the budget, for example "
    "with=trainer.precision=bf16; may be repeated"
)


SOURCE = {"results", "source", "project"}
READS = {  # the keys that each form of gcbench report reads
    "table=NAME": SOURCE | {"table", "budget", "format", "keep", "beside"},
    "figure=NAME": SOURCE | {"figure", "budget", "keep", "beside"},
    "list": SOURCE,
    "deviations": {"table", "format"},
    "diff": set[str](),
}


class Source(Arguments):
    """The arguments that say where results are read from."""

    results: tuple[str, ...] = RESULTS
    """folders with run directories or kept runs, or files of these, separated by commas"""
    source: Annotated[str, OneOf(("files", "wandb"))] = "files"
    """files, or wandb"""
    project: str | None = None
    """entity/project, with source=wandb"""

    @property
    def folder(self) -> Path:
        """Return the first folder of results, where pictures and pages are written by default."""
        first = Path(self.results[0])
        return first.parent if first.is_file() else first

    @property
    def place(self) -> str:
        """Return what was typed about the place of runs: project=NAME, or results=FOLDERS."""
        if self.source == "wandb":
            return f"project={self.project}"
        return f"results={','.join(self.results)}"


class Report(Source):
    """Print results beside the papers' numbers, as tables and figures; reads result files only."""

    usage = (
        "gcbench report table=NAME | figure=NAME [key=value ...] | html | list | deviations | "
        "diff A B"
    )
    examples = """
gcbench report table=powersgd/table4           ours beside the paper's, and what to run
gcbench report table=powersgd budget=cpu       all tables of a paper, from runs of budget=cpu
gcbench report table=orq/table2 format=latex   or markdown, csv
gcbench report table=all keep=outputs          as files, with the results behind them
gcbench report figure=orq/figure2 budget=cpu   curves, breakdowns and trade-offs as svg and png
gcbench report figure=which_method             accuracy against ratio, of everything that ran
gcbench report html                            everything that ran, as a page to look through
gcbench report list [results=...]              all tables, and how many rows have runs
gcbench report deviations table=orq            settings in which rows deviate from their paper
gcbench report diff A B                        two runs or trees: configuration, scores, bits, times
"""

    table: str | None = None
    """powersgd/table4, or powersgd for all of a paper, or all"""
    figure: str | None = None
    """a table or paper, a study, which_method, runs, or all: as svg and png in figures/ below
    keep=, or below the first folder of results="""
    budget: Annotated[str, OneOf(tuple(budget_names()))] = Field(
        PAPER, description=f"whose runs to read: {', '.join(budget_names())}"
    )
    format: Annotated[str, OneOf(FORMATS)] = Field("terminal", description=", ".join(FORMATS))
    keep: str | None = None
    """a folder for the tables and the results behind them, as in keep=outputs"""
    beside: tuple[str, ...] = Field((), description=WITH, alias="with")


class Page(Source):
    """Write everything that ran as one HTML page: curves, trade-offs, time to a goal on a link, a
    map of who reaches a score first, and a table of runs. It needs no server and no network; its
    URL keeps the choices made on it.
    """

    usage = "gcbench report html [key=value ...]"
    examples = """
gcbench report html                        outputs/report.html
gcbench report html results=old,new file=both.html
"""

    file: str | None = None
    """where to write it; by default report.html in the first folder of results="""


class Runs(Source):
    """List everything that ran, with or without a table."""

    usage = "gcbench runs [FOLDER ...] [key=value ...]"

    format: Annotated[str, OneOf(FORMATS)] = Field(
        "terminal", description=f"{', '.join(FORMATS)}; csv has every measure"
    )


class Claims(Source):
    """Print the verdict on each of the papers' 70 claims, its evidence, and the commands that would
    decide open ones. Budgets are judged separately.
    """

    usage = "gcbench claims [paper=orq] [id=orq-05] [key=value ...]"

    paper: str | None = None
    """whose claims: qsgd, powersgd, orq, maxnorm or ecqsgd; by default all"""
    id: str | None = None
    """one claim, as in id=powersgd-10"""
    format: Annotated[str, OneOf(("terminal", *CLAIMS_WRITERS))] = Field(
        "terminal", description=", ".join(("terminal", *CLAIMS_WRITERS))
    )
    keep: str | None = None
    """a folder for claims.md and the studies behind it, as in keep=outputs"""
    beside: tuple[str, ...] = Field((), description=WITH, alias="with")


S = TypeVar("S", bound=Source)


def read_source(kind: type[S], typed: Sequence[str]) -> S:
    """Return the parsed arguments. Raises ConfigError, with one sentence, if one is mistyped."""
    arguments = read_arguments(kind, typed)
    for override in getattr(arguments, "beside", ()):
        if not all(override.partition("=")):
            raise ConfigError(
                f"with={override}: type a key and a value after with=, "
                "for example with=trainer.precision=bf16"
            )
    if isinstance(arguments, Report):
        form = arguments.plain[0] if arguments.plain else ""
        named = "figure=NAME" if arguments.figure else "table=NAME"
        refuse_unread(arguments, "gcbench report", form if form in READS else named, READS)
    if isinstance(arguments, Runs) and arguments.plain:
        if "results" in arguments.given:
            raise ConfigError(
                f"{arguments.plain[0]} results={','.join(arguments.results)}: type the folders "
                "either alone or after results=, not both"
            )
        arguments.results = arguments.plain
    if (arguments.source == "wandb") != (arguments.project is not None):
        raise ConfigError(
            "source=wandb: type project=entity/project, too"
            if arguments.project is None
            else f"project={arguments.project}: type source=wandb, too"
        )
    folders_typed = bool(arguments.plain) or "results" in arguments.given
    if isinstance(arguments, Runs) and arguments.source == "wandb" and folders_typed:
        raise ConfigError(
            f"{' '.join(arguments.results)}: with source=wandb no folder is read; leave it out"
        )
    for folder in arguments.results:
        if folder not in RESULTS and not Path(folder).exists():
            raise ConfigError(
                f"results={folder}: there is no such folder; type one with runs in it"
            )
    return arguments
