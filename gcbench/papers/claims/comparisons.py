"""Relations between means of rows, written as Python comparisons of the rows of a table or a study.

    table4 = rows("powersgd/table4", measure="accuracy")
    table4.rank_2 > table4.sgd                       rank_2 is larger
    table4.rank_2 >= table4.sgd - 0.3                it is not smaller by 0.3 or more
    abs(table4.rank_2 - table4.sgd) <= 0.3           the means differ by at most 0.3; ==: are equal
    each(table4.rank_2, table4.rank_7) > table4.sgd  both are larger
    rises(table4.rank_1, table4.rank_2, table4.sgd)  each is larger than the one before it

Sides add up rows, rows times numbers, and numbers. A row whose name is no Python name stands in
brackets: table1["4bit"]. With several tables a relation has to hold in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

from gcbench.papers.claims.relations import (
    BUDGETS,
    Related,
    Relation,
    RowRelations,
    Side,
    StudyRelations,
)


@dataclass(frozen=True)
class Comparison:
    """The relations that one comparison makes, and where their rows are."""

    rows: Related
    relations: tuple[Relation, ...]

    def __bool__(self) -> bool:
        """Refuse a < b < c, of which Python would drop the first half."""
        raise TypeError("a comparison of rows has no truth; type rises(a, b, c) for a < b < c")


class _Compared:
    """The base class of both sides of a comparison."""

    def __gt__(self, other: Operand) -> Comparison:
        return _compare(self, ">", other)

    def __ge__(self, other: Operand) -> Comparison:
        return _compare(self, ">=", other)

    def __lt__(self, other: Operand) -> Comparison:
        return _compare(self, "<", other)

    def __le__(self, other: Operand) -> Comparison:
        return _compare(self, "<=", other)


@dataclass(frozen=True, eq=False)
class Mean(_Compared):
    """The mean of a row, or what arithmetic makes of such means."""

    rows: Related | None  # where its rows are; None for a number
    text: str
    factors: Mapping[str, float]
    number: float = 0.0

    @property
    def factor_text(self) -> str:
        """Return the text, in parentheses if it is a sum."""
        is_sum = len(self.factors) + bool(self.number) > 1
        return f"({self.text})" if is_sum else self.text

    def __add__(self, other: Mean | float) -> Mean:
        return self._plus(other, "+", 1)

    def __sub__(self, other: Mean | float) -> Mean:
        return self._plus(other, "-", -1)

    def _plus(self, other: Mean | float, sign: str, factor: int) -> Mean:
        more = other if isinstance(other, Mean) else _number(other)
        added = {
            name: self.factors.get(name, 0.0) + factor * more.factors.get(name, 0.0)
            for name in dict.fromkeys([*self.factors, *more.factors])
        }
        text = f"{self.text} {sign} {more.factor_text}"
        return Mean(_common(self, more), text, added, self.number + factor * more.number)

    def __rmul__(self, factor: float) -> Mean:
        factors = {name: factor * one for name, one in self.factors.items()}
        return Mean(self.rows, f"{factor} * {self.factor_text}", factors, factor * self.number)

    def __abs__(self) -> Distance:
        return Distance(self)

    def __eq__(self, other: Operand) -> Comparison:  # type: ignore[override]
        return _compare(self, "==", other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Distance:
    """How far apart two means are."""

    between: Mean

    def __le__(self, bound: float) -> Comparison:
        made = _compare(self.between, "==", 0)
        (relation,) = made.relations
        text = f"abs({self.between.text}) <= {bound}"
        return replace(made, relations=(replace(relation, text=text, within=bound),))


@dataclass(frozen=True)
class Each(_Compared):
    """Several means, with each of which a comparison is made."""

    means: tuple[Mean, ...]


Operand = Mean | Each | float


def each(*means: Mean) -> Each:
    """Return several means, with each of which a comparison is made."""
    return Each(means)


def rises(*sides: Operand) -> Comparison:
    """Return that each side is larger than the one before it."""
    return _chain("<", sides)


def falls(*sides: Operand) -> Comparison:
    """Return that each side is smaller than the one before it."""
    return _chain(">", sides)


def _chain(sign: str, sides: Sequence[Operand]) -> Comparison:
    made = [_compare(left, sign, right) for left, right in pairwise(sides)]
    return replace(made[0], relations=tuple(one for some in made for one in some.relations))


def _compare(left: Operand | _Compared, sign: str, right: Operand) -> Comparison:
    pairs = list(product(_means(left), _means(right)))
    relations = tuple(_relation(one, sign, other) for one, other in pairs)
    rows = _common(*(mean for pair in pairs for mean in pair))
    assert rows is not None, "a comparison has a row"
    return Comparison(rows, relations)


def _number(value: float) -> Mean:
    return Mean(None, str(value), {}, value)


def _means(side: Operand | _Compared) -> Sequence[Mean]:
    match side:
        case Each(means):
            return means
        case Mean():
            return [side]
        case float() | int():
            return [_number(side)]
    raise TypeError(f"{side!r}: rows are compared with rows and numbers")


def _relation(left: Mean, sign: str, right: Mean) -> Relation:
    larger, smaller = (right, left) if "<" in sign else (left, right)
    return Relation(
        f"{left.text} {sign} {right.text}",
        Side(larger.factors, larger.number),
        Side(smaller.factors, smaller.number),
        sign.replace("<", ">"),
    )


def _common(*means: Mean) -> Related | None:
    """Return where the rows of all of these are, which has to be one place."""
    places = [mean.rows for mean in means if mean.rows is not None]
    if any(place != places[0] for place in places):
        raise TypeError(f"rows of one table and measure are compared: {means[0].text} ...")
    return places[0] if places else None


class Rows:
    """The rows of tables or of a study, by their names."""

    def __init__(self, rows: Related) -> None:
        self._rows = rows

    def __getitem__(self, name: str) -> Mean:
        return Mean(self._rows, name, {name: 1.0})

    def __getattr__(self, name: str) -> Mean:
        if name.startswith("_"):  # asked for by copy and pickle
            raise AttributeError(name)
        return self[name]


def rows(*tables: str, measure: str, budgets: Sequence[str] = BUDGETS) -> Rows:
    """Return the rows of tables of conf/table, whose means of a measure are compared.

    `budgets` are those that count: of times, which depend on hardware, only the paper's.
    """
    return Rows(RowRelations(tables, measure=measure, budgets=tuple(budgets)))


def study(name: str, column: str, tables: Iterable[str] = ("",)) -> Rows:
    """Return the rows of a study, or of a table of scripts/turns: links/NAME, of which a column is
    compared; those of a table of several links are called "4 x 1gbit, dense".
    """
    return Rows(StudyRelations(tuple(tables), name=name, column=column))


def grouped(comparisons: Iterable[Comparison], kind: type[Any]) -> list[Any]:
    """Return the relations of this kind, those of the same rows together."""
    found: dict[Related, list[Relation]] = {}
    for comparison in comparisons:
        if isinstance(comparison.rows, kind):
            found.setdefault(comparison.rows, []).extend(comparison.relations)
    return [replace(place, hold=tuple(relations)) for place, relations in found.items()]
