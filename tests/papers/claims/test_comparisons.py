"""Relations between rows, written as Python comparisons."""

from __future__ import annotations

import pytest

from gcbench.papers.claims.comparisons import Comparison, each, falls, grouped, rises, rows, study
from gcbench.papers.claims.relations import RowRelations, StudyRelations

of = rows("p", measure="accuracy")


def texts(comparison: Comparison) -> list[str]:
    return [relation.text for relation in comparison.relations]


def test_chains_and_several_rows_make_a_relation_for_each_pair() -> None:
    assert texts(rises(of.a, of.b, of.c)) == ["a < b", "b < c"]
    assert texts(falls(of.a, each(of.b, of.c), 1)) == ["a > b", "a > c", "b > 1", "c > 1"]
    several = each(of["x, W=2"], of["4bit"]) > each(of["t/c"], of.d + 0.5)
    assert texts(several) == ["x, W=2 > t/c", "x, W=2 > d + 0.5", "4bit > t/c", "4bit > d + 0.5"]
    (part,) = grouped([several], RowRelations)
    assert part.relations[0].names == ["p/x, W=2", "p/t/c"]
    assert part.relations[3].names == ["p/4bit", "p/d"]


def test_sides_are_sums_of_rows_times_numbers() -> None:
    (gap,) = (of.a - 2 * of.b > of.c - of.d + 1).relations
    assert gap.difference({"a": 10, "b": 1, "c": 2, "d": 3}) == 8
    assert gap.text == "a - 2 * b > c - d + 1"
    (twice,) = (of.a >= 2 * (of.b - of.c)).relations
    assert twice.text == "a >= 2 * (b - c)" and twice.weights == {"a": 1, "b": -2, "c": 2}


def test_what_differs_by_a_bound_is_equal_within_it() -> None:
    (near,) = (abs(of.a - of.b) <= 0.3).relations
    assert (near.text, near.sign, near.within) == ("abs(a - b) <= 0.3", "==", 0.3)
    (equal,) = (of.a == 2880000).relations
    assert (equal.text, equal.sign, equal.names) == ("a == 2880000", "==", ["a"])


def test_relations_of_the_same_rows_are_one_part_and_hold_in_all_its_tables() -> None:
    both = rows("p/one", "p/two", measure="loss")
    error = study("speed", "time", ["small/one"])
    holds = [both.a < both.b, of.a > of.b, both.c < both.b, error.a < 2]
    first, second = grouped(holds, RowRelations)
    assert first.of == ("p/one", "p/two") and len(first.relations) == 4
    assert first.relations[2].names == ["p/two/b", "p/two/a"] and second.measure == "accuracy"
    (part,) = grouped(holds, StudyRelations)
    assert part.name == "speed" and part.paths == ["small/one/a"]


def test_what_is_no_relation_is_refused() -> None:
    for wrong in (
        lambda: of.a < of.b < of.c,  # Python would drop the first half
        lambda: of.a > of.b * of.c,
        lambda: abs(of.a - of.b) > 1,
        lambda: max(of.a, of.b) > of.c,
        lambda: of.a > "b",
        lambda: of.a > study("speed", "time").b,
    ):
        with pytest.raises(TypeError):
            wrong()
