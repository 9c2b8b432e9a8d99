"""A report before it takes a form: what markdown, csv, LaTeX and the terminal all show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import fmean, stdev
from typing import NamedTuple

from gcbench.console import TextTable

EMPTY = "-"
DIRTY = "\N{DAGGER}"  # marks runs from a checkout with changes that no commit has
DIRTY_NOTE = "from a checkout with changes that no commit has"
Published = float | str | None


class Summary(NamedTuple):
    """One number over seeds."""

    mean: float
    low: float
    high: float
    deviation: float | None  # of the sample; None for one seed
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        deviation = stdev(values) if len(values) > 1 else None
        return cls(fmean(values), min(values), max(values), deviation, len(values))


class Heading(NamedTuple):
    """A column of ours; the paper's number and the difference follow where the paper has any."""

    key: str
    title: str
    unit: str | None = None
    better: str | None = None  # higher | lower
    budget: str | None = None  # if it is not the report's
    published: bool = False
    digits: int | None = None  # after the point; None: four significant ones
    deviation: bool = False  # show seeds as +- deviation, in place of [lowest, highest]

    @property
    def text(self) -> str:
        """Return the title, and in parentheses the unit, which way is better, and the budget."""
        facts = [
            self.unit,
            f"{self.better} is better" if self.better else None,
            f"budget={self.budget}" if self.budget else None,
        ]
        in_parentheses = ", ".join(filter(None, facts))
        return f"{self.title} ({in_parentheses})" if in_parentheses else self.title


class Cell(NamedTuple):
    """Our number and the paper's."""

    ours: Summary | None = None
    published: Published = None
    instead: str = EMPTY  # shown where ours is None

    @property
    def difference(self) -> float | None:
        """Return our mean less the paper's number, where both are numbers."""
        if self.ours is None or not isinstance(self.published, (int, float)):
            return None
        return self.ours.mean - self.published


class Line(NamedTuple):
    """A row of the table: a method's cells, and the runs behind them."""

    title: str
    group: str | None
    experiment: str | None
    cells: list[Cell]
    runs: str  # which seeds, what is missing, what stands in


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


def number(value: float, digits: int | None) -> str:
    """Return a number with so many digits after the point, or with four significant ones."""
    if digits is not None:
        return f"{value:,.{digits}f}"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def summary(value: Summary, heading: Heading) -> str:
    """Return a text such as 94.3 [94.1, 94.5] (n=3), or 94.3 +- 0.1 (n=3)."""
    digits = heading.digits
    if digits is not None and 0 < abs(value.mean) < 0.5 * 10**-digits:
        digits = None  # much smaller than the paper's numbers: zeros would hide it
    parts = [number(value.mean, digits)]
    if value.low < value.high and value.deviation is not None:
        low, high = number(value.low, digits), number(value.high, digits)
        deviation = number(value.deviation, digits)
        parts.append(f"+- {deviation}" if heading.deviation else f"[{low}, {high}]")
    return " ".join([*parts, f"(n={value.n})"])


def signed(value: float, digits: int | None) -> str:
    """Return a difference with its sign; a zero, and what rounds to it, has none."""
    text = number(value, digits)
    if not text.strip("-0."):
        return text.lstrip("-")
    return text if text.startswith("-") else f"+{text}"


def text_table(document: Document) -> TextTable:
    """Return the table as text: a row's title, its cells, and the runs behind them."""
    headings = ["row"]
    for heading in document.headings:
        headings += [heading.text, *(["paper", "difference"] if heading.published else [])]
    return TextTable(
        [*headings, "runs"],
        [_text_of(line, document.headings) for line in document.lines],
        left=(0, len(headings)),
        groups=[line.group for line in document.lines],
    )


def _text_of(line: Line, headings: Sequence[Heading]) -> list[str]:
    texts = [line.title]
    for cell, heading in zip(line.cells, headings, strict=True):
        texts.append(summary(cell.ours, heading) if cell.ours else cell.instead)
        if heading.published:
            difference = cell.difference
            texts.append(_published(cell.published, heading))
            texts.append(EMPTY if difference is None else signed(difference, heading.digits))
    return [*texts, line.runs]


def _published(value: Published, heading: Heading) -> str:
    if value is None or isinstance(value, str):
        return value or EMPTY
    # Ours may have more digits than the paper prints.
    return number(value, 0 if isinstance(value, int) else heading.digits)


def digits_of(values: Sequence[Published]) -> int | None:
    """Return the digits after the point of the published number that has the most."""
    numbers = [value for value in values if isinstance(value, (int, float))]
    digits = (max(0, -int(Decimal(str(value)).as_tuple().exponent)) for value in numbers)
    return max(digits, default=None)
