"""The commands `gcbench check` and `gcbench methods`; torch is imported once arguments are read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, NamedTuple

from gcbench.core.conf import Config, conf_directory, method_files, read_yaml
from gcbench.core.errors import ConfigError, as_known, near
from gcbench.runner.arguments import Arguments, Option, read_arguments
from gcbench.runner.conf_files import form_in, top_comment
from gcbench.runner.config.compose import find_method
from gcbench.runner.console import TextTable, print_table

if TYPE_CHECKING:
    from gcbench.runner.check.steps import Measured


class Check(Arguments):
    """Runs the tests that every method of gcbench passes on a method of your own, given by the
    dotted name of its class or by compressor=NAME, with settings as key=value; or tests any
    communication hook of DDP, given as MODULE:HOOK."""

    usage = "gcbench check CLASS | compressor=NAME | MODULE:HOOK [key=value ...] [--config-dir DIR]"
    examples = """
gcbench check my_package.MyMethod rank=2
gcbench check --config-dir my_conf compressor=mine rank=2
gcbench check my_module:my_hook
"""
    takes_other_keys = True

    config_dir: Annotated[str | None, Option()] = None
    """a folder with your compressor/NAME.yaml"""


class Methods(Arguments):
    """Lists all methods by family, or those named: what they are, their knobs, what they promise
    and, measured, what they send."""

    usage = "gcbench methods [NAME ... [key=value ...]] [measure=true] [--config-dir DIR]"
    examples = """
gcbench methods
gcbench methods powersgd rank=4
gcbench methods qsgd ecqsgd bits=2 bucket_size=128
"""
    takes_other_keys = True

    measure: bool = False
    """true: also what each sends, measured in a step; with names it always is"""
    config_dir: Annotated[str | None, Option()] = None
    """a folder with your compressor/NAME.yaml, to be listed too"""


def check(typed: Sequence[str]) -> None:
    arguments = read_arguments(Check, typed)
    if arguments.plain and ":" in arguments.plain[0]:
        from gcbench.runner.check.hooks import check_hook, hook_subject_of

        if not check_hook(hook_subject_of(arguments.plain, arguments.others)):
            sys.exit(1)
        return
    from gcbench.runner.check.report import check_method
    from gcbench.runner.check.subject import subject_of

    if not check_method(subject_of(arguments.plain, arguments.others, arguments.config_dir)):
        sys.exit(1)


def methods(typed: Sequence[str]) -> None:
    arguments = read_arguments(Methods, typed)

    if arguments.others and not arguments.plain:
        raise ConfigError(
            f"{arguments.others[0]}: no such key; type the names of methods before their knobs, as "
            "in gcbench methods powersgd rank=4"
        )
    if arguments.measure or arguments.plain:
        list_methods(arguments.plain, arguments.config_dir, arguments.others)
    else:
        list_families(arguments.config_dir)


class ListedMethod(NamedTuple):
    """An entry of the list of methods."""

    name: str
    about: str
    form: str  # whose form of the method the defaults are: paper, code or ours
    knobs: list[str]
    measured: Measured | None  # None if it was not


def read_methods(
    names: Sequence[str],
    measure: bool,
    config_dir: str | None = None,
    overrides: Sequence[str] = (),
) -> Iterator[ListedMethod]:
    """Yield the methods of these names with `overrides`, or all methods if there are no names.

    Raises ConfigError for an unknown name.
    """
    files = refuse_unknown(names, config_dir)
    for name in [as_known(name, files) for name in names] or files:
        node, knobs = find_method(name, config_dir, overrides)
        about, form = " ".join(top_comment(files[name])), form_in(files[name])
        yield ListedMethod(name, about, form, knobs, _measure(node) if measure else None)


def refuse_unknown(names: Sequence[str], config_dir: str | None = None) -> dict[str, Path]:
    """Return the files of all methods; raise ConfigError if one of these names has none."""
    files = method_files(config_dir)
    for name in names:
        if as_known(name, files) not in files:
            raise ConfigError(
                f"{name}: there is no such method; type {near(name, files) or ', '.join(files)}"
            )
    return files


def _measure(node: Config) -> Measured:
    from gcbench.runner.check.steps import measure_method  # imports torch
    from gcbench.runner.launch.instantiate import make_compressor

    return measure_method(make_compressor(node, quiet=True))


def list_families(config_dir: str | None = None) -> None:
    """Print a line for each method, by family."""
    facts, files = read_yaml(conf_directory() / "families.yaml"), method_files(config_dir)
    families: dict[str, dict[str, list[object]]] = facts["families"]
    listed = {name for family in families.values() for name in family}
    yours: dict[str, list[object]] = {n: ["", "", ""] for n in files if n not in listed}
    if yours:
        families["yours"] = yours
    line = "  {:24}{:>4}  {:11}{:9}{}"
    print(line.format("method", "bits", "all-reduce", "feedback", "what it is"))
    for family, members in families.items():
        print(f"\n{family}")
        for name, cells in members.items():
            about, *more = " ".join(top_comment(files[name])).split(" (", 1)
            year = re.search(r"\b[12]\d{3}\b", " ".join(more).partition(")")[0])
            short = about.partition(":")[0]
            dated = f"{short} ({year[0]})" if year else short
            title = dated if len(dated) <= 28 else shorten(short, 28, placeholder=" ...")
            print(line.format(name + "*" * (name in facts["start"]), *cells, title))
    print(
        "\n* start with these. Bits: per value, with the default knobs. all-reduce: whether\n"
        "it sums what is sent (sum: with exchange=sum). feedback: of errors, by default.\n"
        "Knobs, promises and what is sent: gcbench methods NAME, or measure=true for all."
    )


def list_methods(
    names: Sequence[str] = (), config_dir: str | None = None, overrides: Sequence[str] = ()
) -> None:
    """Print what the methods of these names, or all, are, promise and send."""
    from gcbench.runner.check.steps import MEASURED, notes_of

    rows = []
    for method in read_methods(names, True, config_dir, overrides):
        about = f"{method.about}\n{' '.join(method.knobs)}".rstrip()
        rows.append([method.name, about, method.form, *(method.measured or ())])
    notes = [
        *notes_of(" ".join(overrides)),
        "The form of a method that its knobs have by default is its paper's, that of its authors' "
        "code, or ours; its file in gcbench/core/methods lists the differences.",
    ]
    headings = ["compressor", "what it is, and its knobs", "form", *MEASURED]
    left = [i for i, heading in enumerate(headings) if not heading.startswith("x fewer")]
    print_table(TextTable(headings, rows, left, groups=range(len(rows)), notes=notes))
