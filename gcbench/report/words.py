"""What is typed after `gcbench-report`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gcbench.config import ConfigError, conf_directory
from gcbench.report.configs import PAPER
from gcbench.report.formats import FORMATS
from gcbench.report.tables import near

RESULTS = ("outputs",)
KEYS = {
    "table": "powersgd/table4, or powersgd for all of a paper, or all",
    "budget": "whose runs to read: paper, cpu, bits or smoke (paper)",
    "results": "folders with run directories or kept runs, or files of these, separated by commas (outputs)",
    "format": f"{', '.join(FORMATS)} (terminal)",
    "keep": "a folder for the tables and the results behind them, as in keep=outputs",
    "figure": "a table or paper, a study, which_method, runs, or all: as svg and png below keep=, or outputs/figures",
    "with": "a word typed beside every experiment of the budget, as in with=trainer.precision=bf16; may be repeated",
    "source": "files, or wandb (files)",
    "project": "entity/project, with source=wandb",
    "paper": "whose claims: qsgd, powersgd, orq, maxnorm or ecqsgd, with claims (all)",
    "id": "one claim, as in id=powersgd-10, with claims",
}
ABOUT = """\
gcbench-report table=powersgd/table4               ours beside the paper's, and what to run where rows are missing
gcbench-report table=powersgd budget=cpu           all tables of a paper, from runs of budget=cpu
gcbench-report table=orq/table2 format=latex       or markdown, csv
gcbench-report table=all keep=outputs              as files, with the results behind them
gcbench-report figure=orq/figure2 budget=cpu       curves, breakdowns and trade-offs as svg and png
gcbench-report figure=which_method                 accuracy against compression ratio, of everything that ran
gcbench-report list [results=...]                  all tables, and how many of their rows have runs, by budget
gcbench-report runs [FOLDER ...]                   everything that ran, with or without a table
gcbench-report claims [paper=orq] [id=orq-05]      70 claims of the papers: reproduced, refuted or not yet, and by what
gcbench-report diff A B                            two runs or trees: configuration, scores, bits, times

"""


@dataclass
class Words:
    """What was typed as key=value, and the plain words."""

    table: str | None = None
    budget: str = PAPER
    results: list[str] = field(default_factory=lambda: list(RESULTS))
    format: str = "terminal"
    keep: str | None = None
    beside: tuple[str, ...] = ()
    source: str = "files"
    project: str | None = None
    figure: str | None = None
    paper: str | None = None
    id: str | None = None
    plain: list[str] = field(default_factory=list)


def read_words(arguments: Sequence[str] | None) -> Words:
    """Raises ConfigError with one sentence."""
    return _read(_parser().parse_args(arguments).words)


def _parser() -> argparse.ArgumentParser:
    keys = "\n".join(f"  {key + '=':9} {what}" for key, what in KEYS.items())
    parser = argparse.ArgumentParser(
        prog="gcbench-report",
        usage="gcbench-report table=NAME | figure=NAME [key=value ...] | list | runs | claims | diff A B",
        description=f"Results beside the papers' numbers, read from result files only.\n\n{ABOUT}keys:\n{keys}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    return parser


def _read(typed: Sequence[str]) -> Words:
    words = Words()
    for word in typed:
        key, equals, value = word.partition("=")
        if not equals:
            words.plain.append(word)
        elif key not in KEYS:
            raise ConfigError(f"{word}: no such key; type {near(key, KEYS) or ', '.join(KEYS)}")
        elif not value:
            raise ConfigError(f"{word}: type {key}= and {KEYS[key]}")
        elif key == "with":
            if not all(value.partition("=")):
                raise ConfigError(f"{word}: type a key and a value after with=, as in with=trainer.precision=bf16")
            words.beside += (value,)
        else:
            setattr(words, key, value.split(",") if key == "results" else value)
    check_words(words)
    return words


def check_words(words: Words) -> None:
    budgets = sorted(path.stem for path in (conf_directory() / "budget").glob("*.yaml"))
    for key, value, known in (
        ("budget", words.budget, budgets),
        ("format", words.format, FORMATS),
        ("source", words.source, ("files", "wandb")),
    ):
        if value not in known:
            raise ConfigError(f"{key}={value}: type {key}={near(value, known) or ', '.join(known)}")
    if (words.paper or words.id) and words.plain[:1] != ["claims"]:
        raise ConfigError("paper= and id= choose claims, as in gcbench-report claims paper=orq; type table= for tables")
    if words.source == "wandb" and words.project is None:
        raise ConfigError("source=wandb: type project=entity/project, too")
    for folder in words.results:
        if folder not in RESULTS and not Path(folder).exists():
            raise ConfigError(f"results={folder}: there is no such folder; type one with runs in it")
