"""The commands `gcbench check` and `gcbench methods`; torch is imported once arguments are read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from gcbench.config import Arguments, ConfigError, Option, read_arguments


class Check(Arguments):
    """Runs the tests that every method of gcbench passes on a method of your own, given by the
    dotted name of its class or by compressor=NAME, with settings as key=value."""

    usage = "gcbench check CLASS | compressor=NAME [key=value ...] [--config-dir DIR]"
    examples = """
gcbench check my_package.MyMethod rank=2
gcbench check --config-dir my_conf compressor=mine rank=2
"""
    takes_other_keys = True

    config_dir: Annotated[str | None, Option()] = None
    """a folder with your compressor/NAME.yaml"""


class Methods(Arguments):
    """Lists all methods, or those named: what they are, their knobs, what they promise and,
    if measured, what they send."""

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
    from gcbench.check.report import check_method
    from gcbench.check.subject import subject_of

    if not check_method(subject_of(arguments.plain, arguments.others, arguments.config_dir)):
        sys.exit(1)


def methods(typed: Sequence[str]) -> None:
    arguments = read_arguments(Methods, typed)
    from gcbench.check.methods import list_methods

    if arguments.others and not arguments.plain:
        raise ConfigError(
            f"{arguments.others[0]}: no such key; type the names of methods before their knobs, as "
            "in gcbench methods powersgd rank=4"
        )
    measure = arguments.measure or bool(arguments.plain)
    list_methods(arguments.plain, measure, arguments.config_dir, arguments.others)
