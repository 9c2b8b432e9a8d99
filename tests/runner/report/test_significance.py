"""Tests of differences between rows, against SciPy's and against simulated runs."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from scipy import stats
from written import written

from gcbench.papers.claims.comparisons import rows
from gcbench.papers.claims.verdicts import Judged, Value, Verdict, find_margins, judge
from gcbench.runner.report.significance import Noise, holm


def seeds(*numbers: float) -> Value:
    return Value(dict(enumerate(numbers, 1)))


def judged(text: str, values: dict[str, Value], *others: Value) -> list[Judged]:
    """Return the verdicts on relations between rows of a table that has other rows, too."""
    noise = Noise([value.by_seed for value in (*values.values(), *others)])
    of = rows("", measure="accuracy")
    relations = [r for line in text.split("; ") for r in written(line, of).relations]
    return judge(find_margins(relations, values, noise))


# Rows of a table with a standard deviation of 0.1.
OTHERS = (seeds(5.0, 5.1, 5.2), seeds(6.0, 6.2, 6.1), seeds(7.2, 7.0, 7.1), seeds(8.1, 8.0, 8.2))


@pytest.mark.parametrize(
    ("text", "a", "b", "verdict"),
    [
        ("a > b", seeds(3.0, 3.1, 3.2), seeds(2.9, 2.8, 2.7), Verdict.REPRODUCED),
        ("a > b", seeds(3.0, 3.1, 3.2), seeds(3.1, 2.9, 3.0), Verdict.WITHIN_NOISE),
        ("a > b + 1", seeds(3.0, 3.1, 3.2), seeds(2.9, 2.8, 2.7), Verdict.CONTRARY),
        ("a > b", seeds(3.1, 2.9, 3.0), seeds(3.0, 3.1, 3.2), Verdict.NOT_DECIDED),
        ("a >= b", seeds(3.1, 2.9, 3.0), seeds(3.0, 3.1, 3.2), Verdict.NOT_DECIDED),
        ("a < b", seeds(3.0, 3.1, 3.2), seeds(2.9, 2.8, 2.7), Verdict.CONTRARY),
        ("a > 2 * b", seeds(3.0, 3.1, 3.2), seeds(1.1, 1.0, 0.9), Verdict.REPRODUCED),
        ("a > b", Value(exact=3), Value(exact=1), Verdict.REPRODUCED),
        ("a == b", Value(exact=3), Value(exact=3), Verdict.REPRODUCED),
        ("a == b", Value(exact=3), Value(exact=4), Verdict.CONTRARY),
        ("abs(a - b) <= 0.6", seeds(3.0, 3.1, 3.2), seeds(2.9, 2.8, 2.7), Verdict.REPRODUCED),
        ("abs(a - b) <= 0.35", seeds(3.0, 3.1, 3.2), seeds(2.9, 2.8, 2.7), Verdict.WITHIN_NOISE),
        ("abs(a - b) <= 0.25", seeds(3.0, 3.1, 3.2), seeds(2.9, 2.8, 2.7), Verdict.NOT_DECIDED),
        ("abs(a - b) <= 0.01", seeds(3.0, 3.1, 3.2), seeds(2.9, 2.8, 2.7), Verdict.CONTRARY),
        ("a > b", seeds(3.6), seeds(3.0), Verdict.REPRODUCED),  # the table's deviation tells
        ("a > b", seeds(3.1), seeds(3.0), Verdict.WITHIN_NOISE),
        ("a > b", Value({1: 3.0, 2: 3.1}), Value({3: 1.0}), Verdict.REPRODUCED),
        ("a < b", seeds(math.inf), seeds(1), Verdict.CONTRARY),
        ("a > b", seeds(math.inf, 3), seeds(1, 1), Verdict.NOT_DECIDED),
        ("a > b", seeds(3, 3, 3), seeds(-math.inf, 4, 4.1), Verdict.NOT_DECIDED),
        ("a > b", Value(exact=3), Value(exact=3), Verdict.CONTRARY),
        ("a >= b", Value(exact=3), Value(exact=3), Verdict.REPRODUCED),
        ("a > b", seeds(math.inf), seeds(math.inf), Verdict.NOT_DECIDED),
    ],
)
def test_a_relation_between_means_is_judged(
    text: str, a: Value, b: Value, verdict: Verdict
) -> None:
    assert [one.verdict for one in judged(text, {"a": a, "b": b}, *OTHERS)] == [verdict]
    assert judged(text, {"a": a}, *OTHERS)[0].verdict is Verdict.NOT_YET


def test_errors_and_p_values_are_scipys() -> None:
    rng = random.Random(1)
    a, b = ({seed: rng.gauss(mean, 1) for seed in range(6)} for mean in (0, 2))
    weights = {"a": -1.0, "b": 1.0}
    for several, equal in (([a, b], True), ([a, {k: 30 * x for k, x in b.items()}], False)):
        noise = Noise(several)
        named = dict(zip("ab", several, strict=True))
        error = noise.error(named, weights)
        assert error is not None and noise.equal is equal and noise.paired is None
        expected = stats.ttest_ind(
            list(several[1].values()), list(several[0].values()), equal_var=equal
        )
        apart = fmean(several[1].values()) - fmean(several[0].values())
        assert 2 * error.p_above(abs(apart)) == pytest.approx(expected.pvalue, rel=1e-9)
        interval = expected.confidence_interval(0.95)
        assert error.half_width() == pytest.approx((interval.high - interval.low) / 2, rel=1e-9)


def test_rows_with_the_same_good_and_bad_seeds_are_compared_seed_by_seed() -> None:
    """The luck of a seed cancels, where all rows of the table share it by more than chance."""
    values = {"a": seeds(90, 94, 97), "b": seeds(89, 93.2, 96.1)}
    third = seeds(80.1, 84, 87.2)
    (one,) = judged("a > b", values, third)
    assert one.verdict is Verdict.REPRODUCED
    # Two of the three seeds of another row, or a sum that the luck does not cancel in, stay apart.
    (other,) = judged("a > b", values | {"b": Value({1: 89, 2: 93.2})}, third)
    assert other.verdict is Verdict.WITHIN_NOISE
    (sum_of_rows,) = judged("a + b > 183", values, third)
    assert sum_of_rows.verdict is Verdict.WITHIN_NOISE


@pytest.mark.parametrize("count", [2, 3, 6])
def test_chance_alone_decides_once_in_twenty(count: int) -> None:
    """Equal rows of a table of four are told apart once in 20, half of the times either way."""
    rng = random.Random(count)
    found = []
    for _ in range(2000):
        drawn = [seeds(*(rng.gauss(0, 1) for _ in range(count))) for _ in range(4)]
        found += [
            one.verdict for one in judged("a > b", dict(zip("ab", drawn, strict=False)), *drawn[2:])
        ]
    assert found.count(Verdict.REPRODUCED) / len(found) == pytest.approx(0.025, abs=0.012)
    assert found.count(Verdict.CONTRARY) / len(found) == pytest.approx(0.025, abs=0.012)


def test_a_claim_of_many_relations_is_wrong_no_more_often_than_one() -> None:
    """Of ten equal pairs, each tested at 5 %, one would differ in two of five claims."""
    rng = random.Random(3)
    names = [f"r{i}" for i in range(20)]
    text = "; ".join(f"{a} > {b}" for a, b in zip(names[::2], names[1::2], strict=True))
    wrong = 0
    for _ in range(300):
        values = {name: seeds(*(rng.gauss(0, 1) for _ in range(3))) for name in names}
        verdicts = [one.verdict for one in judged(text, values)]
        wrong += any(v in (Verdict.REPRODUCED, Verdict.CONTRARY) for v in verdicts)
    assert wrong / 300 < 0.08


def test_holms_correction() -> None:
    # Holm (1979): the smallest is multiplied by their number, the next by one less, and so on.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_equivalence_is_two_one_sided_tests() -> None:
    """Means within the bound count as equal only where their 90 % interval is inside of it."""
    values = {"a": seeds(3.0, 3.1, 3.2), "b": seeds(3.1, 3.0, 3.2)}
    noise = Noise([value.by_seed for value in (*values.values(), *OTHERS)])
    error = noise.error({k: v.by_seed for k, v in values.items()}, {"a": 1, "b": -1})
    assert error is not None
    ninety = stats.t(error.freedom).ppf(0.95) * error.standard
    for bound, verdict in (
        (1.01 * ninety, Verdict.REPRODUCED),
        (0.99 * ninety, Verdict.WITHIN_NOISE),
    ):
        assert judged(f"abs(a - b) <= {bound}", values, *OTHERS)[0].verdict is verdict


def test_a_verdict_says_its_error_and_seeds() -> None:
    (seeded,) = judged("a > b", {"a": Value({0: 2.0}), "b": Value({0: 1.0})})
    (exact,) = judged("a > b", {"a": Value(exact=2), "b": Value(exact=1)})
    (several,) = judged("a > b", {"a": seeds(3.0, 3.1, 3.2), "b": seeds(2.9, 2.8)}, *OTHERS)
    assert seeded.text == "a > b: +1 (error not known, 1 seed)" and exact.text == "a > b: +1"
    assert several.text == "a > b: +0.25 +- 0.2 (2 and 3 seeds)"
