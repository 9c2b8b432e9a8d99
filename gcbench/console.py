"""Where commands print, and a table of text in its forms: terminal, markdown, csv, LaTeX."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("terminal", "markdown", "csv", "latex")
PAGE_WIDTH = 100  # columns of a table in a kept page
UNFOLDED = 1_000_000  # columns of a file or a pipe, where a row is one line, however long


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Go on in silence: a run does not end because `head -1` has read enough of it."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Return a console on standard output, which folds lines at a terminal's width only."""
    output = _Output()
    return output if output.is_terminal else _Output(width=UNFOLDED)


def name_first(names: Sequence[str], count: int) -> str:
    """Return the first names and how many more there are, or all if that leaves out one at most."""
    if len(names) <= count + 1:
        return ", ".join(names)
    return f"{', '.join(names[:count])} and {len(names) - count} more"


@dataclass(frozen=True)
class TextTable:
    """A table of text: rows of cells below headings, a title above them and notes below."""

    headings: Sequence[str]  # none where the first column names what stands in the second
    rows: Sequence[Sequence[str]]
    left: Collection[int] = (0,)  # columns of words; the others hold numbers and align right
    groups: Sequence[object] = ()  # of every row, where a space or a rule parts the groups
    title: str = ""
    notes: Sequence[str] = ()

    @property
    def group_ends(self) -> list[bool]:
        """Return for every row whether another group begins below it."""
        groups = self.groups or [None] * len(self.rows)
        return [*(above != below for above, below in pairwise(groups)), False][: len(groups)]


def print_table(table: TextTable, output: Console | None = None) -> None:
    """Print a table, folded to the width of a terminal; elsewhere whole, a line a row."""
    output = output or console()
    if table.title:
        output.print(Text(table.title, style="bold"))
    drawn = Table(
        box=box.SIMPLE_HEAD if table.headings else None,
        pad_edge=False,
        show_header=bool(table.headings),
    )
    for i, heading in enumerate(table.headings or [""] * len(table.rows[0])):
        above_unit = Text(heading.replace(" (", "\n(", 1))
        justify: Literal["left", "right"] = "left" if i in table.left else "right"
        drawn.add_column(above_unit, justify=justify, overflow="fold")
    for row, end in zip(table.rows, table.group_ends, strict=True):
        drawn.add_row(*map(Text, row), end_section=end)
    if output.is_terminal:
        output.print(drawn)
    else:
        with output.capture() as captured:
            output.print(drawn)
        lines = captured.get().splitlines()
        output.out("\n".join(line.rstrip() for line in lines), highlight=False)
    for note in table.notes:
        output.print(Text(note, style="dim"))


def markdown(table: TextTable) -> str:
    """Return headings and rows as a table of GitHub's markdown, aligned as it stands."""
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
    """Return how many columns the table takes in markdown."""
    return len(markdown(table).partition("\n")[0])


def escape_markdown(text: str) -> str:
    return re.sub(r"[|~]", r"\\\g<0>", text)


def comma_separated(frame: DataFrame) -> str:
    """Return headings and rows as csv, numbers with all their digits."""
    return frame.to_csv(index=False, lineterminator="\n")


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
    """Return text as LaTeX prints it."""
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
    """Print a table in one of FORMATS, with its title and notes where the format has a place."""
    if form == "terminal":
        print_table(table)
    elif form == "markdown":
        print(f"# {table.title}\n\n{markdown(table)}")
        print("".join(f"\n{note}  " for note in table.notes))
    elif form == "csv":
        from pandas import DataFrame  # takes longer to import than many commands take

        print(comma_separated(DataFrame(table.rows, columns=table.headings)), end="")
    else:
        print(latex(table))
