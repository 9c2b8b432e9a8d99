"""A table of text, and the forms that it takes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.markup import escape
from rich.table import Table

from gcbench.records import console


@dataclass(frozen=True)
class Grid:
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=list)


def terminal(grid: Grid) -> None:
    output = console()
    output.print(f"[bold]{escape(grid.title)}[/bold]", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(grid.headings):
        table.add_column(escape(heading), justify="left" if i == 0 else "right", overflow="fold")
    for row in grid.rows:
        table.add_row(*map(escape, row))
    output.print(table)
    for note in grid.notes:
        output.print(f"[dim]{escape(note)}[/dim]", highlight=False)


def markdown(grid: Grid) -> None:
    lines = [grid.headings, ["---", *["---:"] * (len(grid.headings) - 1)], *grid.rows]
    print(f"# {grid.title}\n")
    print("\n".join("| " + " | ".join(line) + " |" for line in lines))
    print("".join(f"\n{note}  " for note in grid.notes))


def comma_separated(grid: Grid) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([grid.headings, *grid.rows])
    print(text.getvalue(), end="")


FORMS: dict[str, Callable[[Grid], None]] = {
    "terminal": terminal,
    "markdown": markdown,
    "csv": comma_separated,
}


def seconds(value: float) -> str:
    """With the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 1 or unit == "us":
            return (
                f"{value * factor:.3g} {unit}"
                if value * factor < 1000
                else f"{value * factor:,.0f} {unit}"
            )
    raise AssertionError


def rate(bits_per_second: float) -> str:
    for factor, unit in ((1e-12, "Tbit/s"), (1e-9, "Gbit/s"), (1e-6, "Mbit/s")):
        if bits_per_second * factor >= 1:
            return f"{bits_per_second * factor:.3g} {unit}"
    return f"{bits_per_second:.3g} bit/s"
