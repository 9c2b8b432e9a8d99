"""Relations between means of rows, of tables or of studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from gcbench.runner.config.budget import PAPER
from gcbench.runner.report.measures import SCORES

STEPS = "cpu_steps"  # has the papers' number of steps
BUDGETS = (PAPER, STEPS, "cpu_long", "cpu_medium", "cpu")  # those closest to the paper first
LEARNING_RATE = "learning_rate"  # the best learning rate of a sweep
EARLY_LOSS = "early_loss"  # the mean training loss over the first tenth of the steps


class Side(NamedTuple):
    """One side of a relation: rows times factors, and a number."""

    factors: Mapping[str, float]
    number: float

    def value(self, numbers: Mapping[str, float]) -> float:
        """Return the side's value, given that of each row."""
        return sum(numbers[name] * factor for name, factor in self.factors.items()) + self.number


@dataclass(frozen=True)
class Relation:
    """A relation between rows."""

    text: str
    larger: Side
    smaller: Side
    sign: str  # > | >= | ==
    within: float = 0.0  # the allowed difference, with ==

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.larger.factors, *self.smaller.factors]))

    @cached_property
    def weights(self) -> dict[str, float]:
        """Return the factor of each row in the difference."""
        larger, smaller = self.larger.factors, self.smaller.factors
        return {name: larger.get(name, 0.0) - smaller.get(name, 0.0) for name in self.names}

    @property
    def orders(self) -> bool:
        """Return whether it only says which of two rows is larger, not by how much."""
        return (
            self.sign != "=="
            and sorted(self.weights.values()) == [-1.0, 1.0]
            and self.larger.number == self.smaller.number
        )

    @property
    def recovers(self) -> bool:
        """Return whether rows that are equal satisfy it with a margin, as in a >= b - 0.3.

        A method that recovers what another reaches may need the paper's number of steps for it.
        """
        equal = dict.fromkeys(self.names, 1.0)
        return self.sign == "==" or (self.sign == ">=" and self.difference(equal) > 0)

    @property
    def swapped(self) -> Relation:
        return replace(self, larger=self.smaller, smaller=self.larger)

    def difference(self, numbers: Mapping[str, float]) -> float:
        return self.larger.value(numbers) - self.smaller.value(numbers)

    def margin(self, difference: float) -> float:
        """Return by how much the relation holds; a negative margin violates it."""
        return self.within - abs(difference) if self.sign == "==" else difference

    def placed(self, folder: str) -> Relation:
        """Return the relation between the rows of these names in `folder`."""
        if not folder:
            return self
        larger, smaller = (
            Side({f"{folder}/{name}": factor for name, factor in side.factors.items()}, side.number)
            for side in (self.larger, self.smaller)
        )
        return replace(self, larger=larger, smaller=smaller)


@dataclass(frozen=True)
class Related:
    """Relations between rows, which have to hold in each of the folders `of`."""

    of: tuple[str, ...] = ("",)
    hold: tuple[Relation, ...] = ()

    @cached_property
    def relations(self) -> list[Relation]:
        return [relation.placed(folder) for folder in self.of for relation in self.hold]

    @property
    def paths(self) -> list[str]:
        return list(dict.fromkeys(name for relation in self.relations for name in relation.names))


@dataclass(frozen=True, kw_only=True)
class RowRelations(Related):
    """Relations between rows of tables; `of` names tables of conf/table."""

    measure: str  # a name in measures.py, early_loss or learning_rate
    budgets: tuple[str, ...] = BUDGETS

    @property
    def score(self) -> str:
        """Return the score by which a row's learning rate is chosen, if several were tried."""
        return self.measure if self.measure in SCORES else "accuracy"


@dataclass(frozen=True, kw_only=True)
class StudyRelations(Related):
    """Relations between rows of a study; `of` names the tables, if the study has several."""

    name: str
    column: str
