"""A report as markdown, csv, LaTeX, or on the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from gcbench import console
from gcbench.console import PAGE_WIDTH, escape_latex, escape_markdown
from gcbench.report.document import Document, text_tables

if TYPE_CHECKING:
    from pandas import DataFrame

COMMANDS = "gcbench "


def markdown(document: Document) -> str:
    """Return a page: the title, the table, and the sections below it as lists."""
    under = [f"{escape_markdown(line)}  " for line in document.under]
    lines = [f"# {escape_markdown(document.title)}", "", *under, ""]
    lines.append("\n\n".join(map(console.markdown, text_tables(document, PAGE_WIDTH))))
    for section in document.sections:
        lines += [
            "",
            f"## {section.title}",
            "",
            *(f"- {_mark_code(line)}" for line in section.lines),
        ]
    return "\n".join(lines) + "\n"


def _mark_code(line: str) -> str:
    """Return a line in which the command, and nothing else, is marked as code."""
    before, program, after = line.replace("\n", " ").partition(COMMANDS)
    arguments, bracket, rest = after.partition(" (")
    if program and (not before or before.endswith(": ")):
        ticks = "`" * (1 + max(map(len, re.findall("`+", arguments)), default=0))
        code = f"{ticks}{program}{arguments}{ticks}"
        return f"{escape_markdown(before)}{code}{escape_markdown(bracket + rest)}"
    return escape_markdown(line)


def comma_separated(document: Document) -> str:
    return console.comma_separated(frame_of(document))


def frame_of(document: Document) -> DataFrame:
    """Return the table as plain numbers, with one column for each statistic of each heading."""
    from pandas import DataFrame

    records = []
    for line in document.lines:
        record: dict[str, object] = {
            "row": line.title,
            "group": line.group,
            "experiment": line.experiment,
        }
        for heading, cell in zip(document.headings, line.cells, strict=True):
            ours, key = cell.ours, heading.key
            record |= {
                key: ours and ours.mean,
                f"{key}_low": ours and ours.low,
                f"{key}_high": ours and ours.high,
                f"{key}_deviation": ours and ours.deviation,
                f"{key}_n": ours.n if ours else 0,
                f"{key}_published": cell.published,
                f"{key}_difference": cell.difference,
            }
        records.append({**record, "stand_in_ratio": line.stand_in_ratio, "seeds": line.seeds})
    return DataFrame(records, dtype=object)


def latex(document: Document) -> str:
    r"""Return a table environment, which needs \usepackage{booktabs}."""
    caption = f"{document.title}. {' '.join(document.under)}"
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\label{{tab:{document.name.replace('/', '-')}}}",
        *map(console.latex, text_tables(document)),
    ]
    for section in document.sections:
        lines.append(rf"\par\footnotesize\textbf{{{escape_latex(section.title)}.}}")
        lines += [f"{escape_latex(sentence.rstrip('.'))}." for sentence in section.lines]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def print_document(document: Document) -> None:
    output = console.console()
    output.print(Text(document.title, style="bold"))
    for line in document.under:
        output.print(Text(line, style="dim"))
    for table in text_tables(document, output.width):
        console.print_table(table, output)
    for section in document.sections:
        output.print(Text(section.title, style="bold"))
        for sentence in section.lines:  # not wrapped, so that it can be copied
            output.print(Text(f"  {sentence}"), soft_wrap=True)


WRITERS: dict[str, Callable[[Document], str]] = {
    "markdown": markdown,
    "csv": comma_separated,
    "latex": latex,
}


def show_document(document: Document, form: str) -> None:
    """Print a report in one of console.FORMATS."""
    if form == "terminal":
        print_document(document)
    else:
        print(WRITERS[form](document))
