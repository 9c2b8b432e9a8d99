"""The content of a report, and its text as markdown, csv, LaTeX, or on the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from statistics import fmean, stdev
from typing import NamedTuple

from rich.text import Text

from gcbench.runner import console
from gcbench.runner.console import (
    PAGE_WIDTH,
    UNFOLDED,
    TextTable,
    escape_latex,
    escape_markdown,
    width_of,
)
from gcbench.runner.records.store import RecordedRun

EMPTY = "-"
DIRTY = "\N{DAGGER}"  # marks runs from a checkout with uncommitted changes
DIRTY_NOTE = "from a checkout with uncommitted changes"
STALE = "\N{SECTION SIGN}"  # marks runs that are older than a change of their numbers
STALE_NOTE = "older than a change that alters their scores"
OTHER_BUDGET = "\N{DOUBLE DAGGER}"  # marks columns whose budget is not the report's
ARROWS = {"higher": "\N{UPWARDS ARROW}", "lower": "\N{DOWNWARDS ARROW}"}
Published = float | str | None


def marks_of(runs: Iterable[RecordedRun]) -> str:
    """Return the marks of runs from a checkout with changes, and of runs that are stale."""
    every = list(runs)
    return DIRTY * any(run.dirty for run in every) + STALE * any(run.outdated_by for run in every)


class Summary(NamedTuple):
    """Statistics of one number over seeds."""

    mean: float
    low: float
    high: float
    deviation: float | None  # standard deviation of the sample; None for one seed
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        deviation = stdev(values) if len(values) > 1 else None
        return cls(fmean(values), min(values), max(values), deviation, len(values))


class Heading(NamedTuple):
    """A column of our numbers; if `published`, the paper's and the difference follow it."""

    key: str
    title: str
    unit: str | None = None
    better: str | None = None  # higher | lower
    budget: str | None = None  # only if it is not the report's
    published: bool = False
    digits: int | None = None  # after the decimal point; None: four significant digits
    deviation: bool = False  # show the spread as +- deviation, not as [lowest, highest]
    counted: bool = True  # show the number of seeds, which a column of seeds says, too

    @property
    def text(self) -> str:
        """Return the title with a mark of its budget, its unit, and an arrow to the better side."""
        unit = f" ({self.unit})" if self.unit else ""
        arrow = f" {ARROWS[self.better]}" if self.better else ""
        return f"{self.title}{OTHER_BUDGET if self.budget else ''}{unit}{arrow}"


class Cell(NamedTuple):
    """Our number and the paper's."""

    ours: Summary | None = None
    published: Published = None
    instead: str = EMPTY  # shown if ours is None

    @property
    def difference(self) -> float | None:
        """Return our mean minus the paper's number; None unless both are numbers."""
        if self.ours is None or not isinstance(self.published, (int, float)):
            return None
        return self.ours.mean - self.published


class Line(NamedTuple):
    """A row of the table: a method's cells, and the runs behind them."""

    title: str
    group: str | None
    experiment: str | None
    cells: list[Cell]
    seeds: str  # the seeds of the runs, and the status of those that did not end well
    stand_in_ratio: float | None = None  # compression ratio on the model in place of the paper's


class Section(NamedTuple):
    """A list of sentences below the table."""

    title: str
    lines: list[str]


@dataclass(frozen=True)
class Document:
    """One table with the text around it."""

    name: str  # paper/table
    title: str
    under: list[str]  # sentences below the title: source, budget
    headings: list[Heading]
    lines: list[Line]
    sections: list[Section] = field(default_factory=list)


def format_number(value: float, digits: int | None) -> str:
    """Return a number with `digits` after the decimal point; None: with four significant digits.

    Zero is 0.
    """
    if digits is not None and value:
        return f"{value:,.{digits}f}"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e15 else f"{value:.4g}"


def format_summary(value: Summary, heading: Heading) -> str:
    """Return a text such as 94.3 [94.1, 94.5] (n=3), or 94.3 +- 0.1 (n=3)."""
    digits = heading.digits
    if digits is not None and 0 < abs(value.mean) < 0.5 * 10**-digits:
        digits = None  # so small that these digits would show only zeros
    parts = [format_number(value.mean, digits)]
    if value.low < value.high and value.deviation is not None:
        low, high = format_number(value.low, digits), format_number(value.high, digits)
        deviation = format_number(value.deviation, digits)
        parts.append(f"+- {deviation}" if heading.deviation else f"[{low}, {high}]")
    return " ".join([*parts, f"(n={value.n})"] if heading.counted else parts)


def format_signed(value: float, digits: int | None) -> str:
    """Return a difference with its sign; one that rounds to zero has no sign."""
    text = format_number(value, digits)
    if not text.strip("-0."):
        return "0"
    return text if text.startswith("-") else f"+{text}"


class _Column(NamedTuple):
    heading: str
    texts: list[str]
    left: bool = False


def text_tables(document: Document, width: int = UNFOLDED) -> list[TextTable]:
    """Return the table as text: the rows' titles, their cells, and the seeds of their runs.

    A table that would be wider than `width` characters in markdown is split. Every part repeats the
    titles, and the paper's number stays next to ours.
    """
    titles = _Column("row", [line.title for line in document.lines], left=True)
    parts = [[titles]]
    for block in _blocks(document):
        if len(parts[-1]) > 1 and width_of(_to_table([*parts[-1], *block])) > width:
            parts.append([titles])
        parts[-1] += block
    groups = [line.group for line in document.lines]
    return [replace(_to_table(part), groups=groups) for part in parts]


def _to_table(columns: Sequence[_Column]) -> TextTable:
    return TextTable(
        [column.heading for column in columns],
        list(zip(*(column.texts for column in columns), strict=True)),
        left=[i for i, column in enumerate(columns) if column.left],
    )


def _blocks(document: Document) -> Iterator[list[_Column]]:
    """Yield the columns after the titles, in blocks that must not be split."""
    for i, heading in enumerate(document.headings):
        cells = [line.cells[i] for line in document.lines]
        ours = [format_summary(cell.ours, heading) if cell.ours else cell.instead for cell in cells]
        block = [_Column(heading.text, ours)]
        if heading.published:
            block.append(_Column("paper", [_published(cell.published, heading) for cell in cells]))
            if any(isinstance(cell.published, (int, float)) for cell in cells):
                block.append(_Column("difference", [_difference(cell, heading) for cell in cells]))
        yield block
    ratios = [line.stand_in_ratio for line in document.lines]
    if any(ratios):
        yield [_Column("stand-in's ratio", [f"{r:.3g}" if r else EMPTY for r in ratios])]
    yield [_Column("seeds", [line.seeds for line in document.lines], left=True)]


def _difference(cell: Cell, heading: Heading) -> str:
    return EMPTY if cell.difference is None else format_signed(cell.difference, heading.digits)


def _published(value: Published, heading: Heading) -> str:
    if value is None or isinstance(value, str):
        return value or EMPTY
    # Numbers of this column may have more digits than an integer that the paper prints.
    return format_number(value, 0 if isinstance(value, int) else heading.digits)


def digits_of(values: Sequence[Published]) -> int | None:
    """Return the most digits after the decimal point of a published number; None without any."""
    numbers = [value for value in values if isinstance(value, (int, float))]
    digits = (max(0, -int(Decimal(str(value)).as_tuple().exponent)) for value in numbers)
    return max(digits, default=None)


def markdown(document: Document) -> str:
    """Return a page: the title, the table, and the sections below it as lists."""
    under = [f"{escape_markdown(line)}  " for line in document.under]
    lines = [f"# {escape_markdown(document.title)}", "", *under, ""]
    lines.append("\n\n".join(map(console.markdown, text_tables(document, PAGE_WIDTH))))
    for section in document.sections:
        lines += ["", f"## {section.title}", ""]
        lines += [f"- {_mark_code(line)}" for line in section.lines]
    return "\n".join(lines) + "\n"


def _mark_code(line: str) -> str:
    """Return a line in which the command, and nothing else, is marked as code."""
    before, program, after = line.replace("\n", " ").partition("gcbench ")
    arguments, bracket, rest = after.partition(" (")
    if program and (not before or before.endswith(": ")):
        ticks = "`" * (1 + max(map(len, re.findall("`+", arguments)), default=0))
        code = f"{ticks}{program}{arguments}{ticks}"
        return f"{escape_markdown(before)}{code}{escape_markdown(bracket + rest)}"
    return escape_markdown(line)


def comma_separated(document: Document) -> str:
    """Return the table as plain numbers, with one column for each statistic of each heading."""
    from pandas import DataFrame

    records = []
    for line in document.lines:
        record: dict[str, object] = {"row": line.title, "group": line.group}
        record["experiment"] = line.experiment
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
    return console.comma_separated(DataFrame(records, dtype=object))


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


def brief(document: Document) -> Document:
    """Return a report whose sections are one line that says what they are, and how to see them."""
    if not document.sections:
        return document
    titles = ", ".join(f"{one.title} ({len(one.lines)})" for one in document.sections)
    return replace(document, sections=[Section(f"verbose=true shows more: {titles}", [])])


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
