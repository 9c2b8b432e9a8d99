"""The same report as markdown, csv, LaTeX, or on the terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Literal

from rich import box
from rich.markup import escape
from rich.table import Table as RichTable

from gcbench.records import console
from gcbench.report.document import DIRTY, Document, words

COMMANDS = "gcbench "


def markdown(document: Document) -> str:
    headings, rows = words(document)
    table = [headings, ["---", *["---:"] * (len(headings) - 2), "---"], *rows]
    lines = [f"# {document.title}", "", *(f"{line}  " for line in document.under), ""]
    lines += ["| " + " | ".join(_cell(text) for text in row) + " |" for row in table]
    for section in document.sections:
        lines += ["", f"## {section.title}", "", *(f"- {_code(line)}" for line in section.lines)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(line: str) -> str:
    """A command in the line, and nothing else of it, as code."""
    before, found, after = line.partition(COMMANDS)
    typed, bracket, rest = after.partition(" (")
    return (
        f"{before}`{found}{typed}`{bracket}{rest}"
        if found and (not before or before.endswith(": "))
        else line
    )


def comma_separated(document: Document) -> str:
    """One line a row; plain numbers, each kind in a column of its own."""
    text = io.StringIO()
    names = ["row", "group", "experiment"]
    for heading in document.headings:
        key = heading.key
        names += [
            key,
            f"{key}_low",
            f"{key}_high",
            f"{key}_deviation",
            f"{key}_n",
            f"{key}_published",
            f"{key}_difference",
        ]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "runs"])
    for line in document.lines:
        numbers = []
        for cell in line.cells:
            ours = cell.ours or (None, None, None, None, 0)
            numbers += [*ours, cell.published, cell.difference]
        writer.writerow([line.title, line.group, line.experiment, *numbers, line.runs])
    return text.getvalue()


ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    DIRTY: r"\dag{}",
}


def escaped(text: str) -> str:
    return re.sub(
        rf"[\\~^<>&%$#_{{}}{DIRTY}]", lambda found: ESCAPES.get(found[0], "\\" + found[0]), text
    ).replace("+-", r"$\pm$")


def latex(document: Document) -> str:
    """For \\usepackage{booktabs}."""
    headings, rows = words(document)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        rf"\caption{{{escaped(document.title)}. {escaped(' '.join(document.under))}}}",
        rf"\label{{tab:{document.name.replace('/', '-')}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(headings) - 2)}l}}",
        r"\toprule",
        _row(headings),
        r"\midrule",
    ]
    group = document.lines[0].group if document.lines else None
    for line, row in zip(document.lines, rows, strict=True):
        lines += [r"\midrule"] if line.group != group else []
        lines.append(_row(row))
        group = line.group
    lines += [r"\bottomrule", r"\end{tabular}"]
    for section in document.sections:
        told = [rf"{escaped(sentence.rstrip('.'))}." for sentence in section.lines]
        lines += [rf"\par\footnotesize\textbf{{{escaped(section.title)}.}}", *told]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _row(cells: list[str]) -> str:
    return " & ".join(map(escaped, cells)) + r" \\"


def terminal(document: Document) -> None:
    output = console()
    headings, rows = words(document)
    output.print(f"[bold]{escape(document.title)}[/bold]")
    for sentence in document.under:
        output.print(escape(sentence), highlight=False, style="dim")
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings):
        justify: Literal["left", "right"] = "left" if i in (0, len(headings) - 1) else "right"
        table.add_column(escape(heading.replace(" (", "\n(", 1)), justify=justify, overflow="fold")
    for i, (line, row) in enumerate(zip(document.lines, rows, strict=True)):
        last = i + 1 == len(rows) or document.lines[i + 1].group != line.group
        table.add_row(*map(escape, row), end_section=last)
    output.print(table)
    for section in document.sections:
        output.print(f"[bold]{escape(section.title)}[/bold]")
        for sentence in section.lines:
            output.print(f"  {sentence}", highlight=False, markup=False, soft_wrap=True)


WRITERS: dict[str, Callable[[Document], str]] = {
    "markdown": markdown,
    "csv": comma_separated,
    "latex": latex,
}
FORMATS = ("terminal", *WRITERS)
