"""A report before it takes a form: what markdown, csv, LaTeX and the terminal all show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import fmean, stdev
from typing import NamedTuple

EMPTY = "-"
DIRTY = "\N{DAGGER}"  # beside runs from a checkout with changes that no commit has
DIRTY_NOTE = "from a checkout with changes that no commit has"
Published = float | str | None


class Summary(NamedTuple):
    """Of one number over seeds."""

    mean: float
    low: float
    high: float
    deviation: float | None  # of the sample; None for one seed
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(
            fmean(values),
            min(values),
            max(values),
            stdev(values) if len(values) > 1 else None,
            len(values),
        )


class Heading(NamedTuple):
    """A column: ours, and beside it the paper's number and the difference where the paper has any."""

    key: str
    title: str
    unit: str | None = None
    better: str | None = None  # higher | lower
    budget: str | None = None  # another one than the report's
    published: bool = False
    digits: int | None = None  # after the point; None: four significant ones
    deviation: bool = False  # seeds as +- deviation, in place of [lowest, highest]

    @property
    def text(self) -> str:
        facts = [
            self.unit,
            f"{self.better} is better" if self.better else None,
            f"budget={self.budget}" if self.budget else None,
        ]
        told = ", ".join(fact for fact in facts if fact)
        return f"{self.title} ({told})" if told else self.title


class Cell(NamedTuple):
    ours: Summary | None = None
    published: Published = None
    instead: str = EMPTY  # what stands where ours is None

    @property
    def difference(self) -> float | None:
        if self.ours is None or not isinstance(self.published, (int, float)):
            return None
        return self.ours.mean - self.published


class Line(NamedTuple):
    title: str
    group: str | None
    experiment: str | None
    cells: list[Cell]
    runs: str  # which seeds, what is missing, what stands in


class Section(NamedTuple):
    title: str
    lines: list[str]


@dataclass(frozen=True)
class Document:
    """One table with what stands around it."""

    name: str  # paper/table
    title: str
    under: list[str]  # below the title: source, budget
    headings: list[Heading]
    lines: list[Line]
    sections: list[Section] = field(default_factory=list)


def number(value: float, digits: int | None) -> str:
    if digits is not None:
        return f"{value:,.{digits}f}"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def summary(value: Summary, heading: Heading) -> str:
    """As in 94.3 [94.1, 94.5] (n=3), or 94.3 +- 0.1 (n=3)."""
    digits = heading.digits
    if digits is not None and 0 < abs(value.mean) < 0.5 * 10**-digits:
        digits = None  # much smaller than the paper's numbers: zeros would hide it
    parts = [number(value.mean, digits)]
    if value.low < value.high and value.deviation is not None:
        low, high = number(value.low, digits), number(value.high, digits)
        parts.append(
            f"+- {number(value.deviation, digits)}" if heading.deviation else f"[{low}, {high}]"
        )
    return " ".join([*parts, f"(n={value.n})"])


def signed(value: float, digits: int | None) -> str:
    text = number(value, digits)
    if not text.strip("-0."):
        return text.lstrip("-")
    return text if text.startswith("-") else f"+{text}"


def words(document: Document) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as text."""
    headings = ["row"]
    for heading in document.headings:
        headings += [heading.text, *(["paper", "difference"] if heading.published else [])]
    return [*headings, "runs"], [_words(line, document.headings) for line in document.lines]


def _words(line: Line, headings: Sequence[Heading]) -> list[str]:
    found = [line.title]
    for cell, heading in zip(line.cells, headings, strict=True):
        found.append(summary(cell.ours, heading) if cell.ours else cell.instead)
        if heading.published:
            apart = cell.difference
            found += [
                _published(cell.published, heading),
                EMPTY if apart is None else signed(apart, heading.digits),
            ]
    return [*found, line.runs]


def _published(value: Published, heading: Heading) -> str:
    if value is None or isinstance(value, str):
        return value or EMPTY
    return number(
        value, 0 if isinstance(value, int) else heading.digits
    )  # ours may have more digits than the paper prints


def digits_of(values: Sequence[Published]) -> int | None:
    """After the point, as many as the published number with the most."""
    numbers = [value for value in values if isinstance(value, (int, float))]
    return max(
        (max(0, -int(Decimal(str(value)).as_tuple().exponent)) for value in numbers), default=None
    )
