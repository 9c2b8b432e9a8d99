"""The console that commands print to, and text tables for terminal, markdown, csv and LaTeX."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("terminal", "markdown", "csv", "latex")
PAGE_WIDTH = 100  # width of a table in a kept page, in characters
NUMBER = re.compile(r"[+-]?[\d,]*\.?\d+(e[+-]?\d+)?")
T = TypeVar("T")
UNFOLDED = 1_000_000  # width of a file or a pipe, where no row is folded


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Print nothing more: a run must not end because `head -1` has closed the pipe."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Return a console on standard output that folds lines only on a terminal."""
    output = _Output()
    return output if output.is_terminal else _Output(width=UNFOLDED)


def spinner(title: str) -> Status:
    """Return a spinner for a terminal's standard error, to be started, stopped or entered."""
    return Console(stderr=True, quiet=not sys.stderr.isatty()).status(title)


def with_bar(items: Sequence[T], title: str) -> Iterator[T]:
    """Yield the items, with a bar on a terminal's standard error that goes away at the end."""
    from rich.progress import track

    output = Console(stderr=True)
    hidden = not output.is_terminal or len(items) < 2
    return iter(track(items, title, console=output, transient=True, disable=hidden))


@dataclass(frozen=True)
class TextTable:
    """A table of text cells with headings, a title above and notes below."""

    headings: Sequence[str]  # empty if the first column labels the second
    rows: Sequence[Sequence[str]]
    left: Collection[int] = (0,)  # left-aligned columns; the others hold numbers
    groups: Sequence[object] = ()  # the group of each row; a space or a rule separates groups
    title: str = ""
    notes: Sequence[str] = ()
    below: int = 0  # of the last columns: on a terminal they stand below their rows

    @property
    def group_ends(self) -> list[bool]:
        """Return, for every row, whether another group begins below it."""
        groups = self.groups or [None] * len(self.rows)
        return [*(above != below for above, below in pairwise(groups)), False][: len(groups)]


def print_table(table: TextTable, output: Console | None = None) -> None:
    """Print a table, folded to the width of a terminal; elsewhere with one line per row."""
    output = output or console()
    if table.title:
        output.print(Text(table.title, style="bold"))
    drawn = Table(
        box=box.SIMPLE_HEAD if table.headings else None,
        pad_edge=False,
        show_header=bool(table.headings),
    )
    below = table.below if output.is_terminal else 0
    columns = (table.headings or [""] * len(table.rows[0]))[: -below or None]
    for i, heading in enumerate(columns):
        above_unit = Text(heading.replace(" (", "\n(", 1))
        justify: Literal["left", "right"] = "left" if i in table.left else "right"
        drawn.add_column(above_unit, justify=justify, overflow="fold")
    for row, end in zip(table.rows, table.group_ends, strict=True):
        drawn.add_row(*map(Text, row[: len(columns)]), end_section=end or bool(below))
    if output.is_terminal and not below:
        output.print(drawn)
    else:
        with output.capture() as captured:
            output.print(drawn)
        lines = [line.rstrip() for line in captured.get().splitlines()]
        if below:  # in place of the space below each row
            first = next(i for i, line in enumerate(lines) if "─" in line) + 1
            gaps = [i for i in range(first, len(lines)) if not lines[i].strip()]
            for i, row in zip(gaps, table.rows, strict=False):
                lines[i] = "\n".join(line for text in row[-below:] for line in _fold(text, output))
        output.out("\n".join(lines), highlight=False)
    for note in table.notes:
        output.print(Text(note, style="dim"), soft_wrap=bool(table.below))


def _fold(text: str, output: Console) -> list[str]:
    """Return the lines of a text below a row; a path, which has no spaces, stays whole."""
    return wrap(
        text,
        output.width,
        initial_indent="   ",
        subsequent_indent="     ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_text(table: TextTable) -> str:
    """Return a table as `print_table` writes it to a file, for who prints it himself."""
    output = Console(width=get_terminal_size((80, 24)).columns, color_system=None)
    with output.capture() as captured:
        print_table(table, output)
    return captured.get().rstrip()


def markdown(table: TextTable) -> str:
    """Return headings and rows as a GitHub markdown table whose source is aligned, too."""
    rows = [[escape_markdown(cell) for cell in row] for row in (table.headings, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rules = [
        "-" * width if i in table.left else "-" * (width - 1) + ":"
        for i, width in enumerate(widths)
    ]
    lines = [
        [
            cell.ljust(width) if i in table.left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (lines[0], rules, *lines[1:]))


def width_of(table: TextTable) -> int:
    """Return the width of the table in markdown, in characters."""
    return len(markdown(table).partition("\n")[0])


def escape_markdown(text: str) -> str:
    """Return text as one line that markdown shows as it is: no HTML, no link, no picture."""
    return re.sub(r"[|~]|<(?=[a-zA-Z/!?])|(?<=\])\(", r"\\\g<0>", text.replace("\n", " "))


def comma_separated(frame: DataFrame) -> str:
    """Return headings and rows as csv, with numbers at full precision.

    Text that a spreadsheet would compute, such as =1+1, follows an apostrophe, so that it does not.
    """
    escaped = frame.map(_no_formula).rename(columns=_no_formula)
    return escaped.to_csv(index=False, lineterminator="\n")


def _no_formula(cell: Any) -> Any:
    harmless = not isinstance(cell, str) or len(cell) < 2 or NUMBER.fullmatch(cell)
    return cell if harmless or cell[0] not in "=+-@\t\r" else f"'{cell}"


ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\N{DAGGER}": r"\dag{}",
    "\N{DOUBLE DAGGER}": r"\ddag{}",
    "\N{UPWARDS ARROW}": r"$\uparrow$",
    "\N{DOWNWARDS ARROW}": r"$\downarrow$",
}


def escape_latex(text: str) -> str:
    """Return text with LaTeX's special characters escaped."""
    special = "[" + re.escape("&%$#_{}" + "".join(ESCAPES)) + "]"
    escaped = re.sub(special, lambda match: ESCAPES.get(match[0], "\\" + match[0]), text)
    return escaped.replace("+-", r"$\pm$")


def latex(table: TextTable) -> str:
    r"""Return headings and rows as a tabular, which needs \usepackage{booktabs}."""
    columns = "".join("l" if i in table.left else "r" for i in range(len(table.headings)))
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(table.headings)]
    lines.append(r"\midrule")
    for row, end in zip(table.rows, table.group_ends, strict=True):
        lines += [_latex_row(row), *([r"\midrule"] if end else [])]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(escape_latex, cells)) + r" \\"


def show_table(table: TextTable, form: str) -> None:
    """Print a table in one of FORMATS, with its title and notes where the format allows them."""
    if form == "terminal":
        print_table(table)
    elif form == "markdown":
        print(f"# {escape_markdown(table.title)}\n\n{markdown(table)}")
        print("".join(f"\n{escape_markdown(note)}  " for note in table.notes))
    elif form == "csv":
        from pandas import DataFrame  # slower to import than many commands

        print(comma_separated(DataFrame(table.rows, columns=table.headings)), end="")
    else:
        print(latex(table))
