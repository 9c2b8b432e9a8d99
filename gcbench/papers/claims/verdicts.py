"""The verdicts on the papers' claims, and the tests of relations by which they are reached.

A relation holds, or its opposite does, if a two-sided test at 5 % says so, after Holm's correction
for all tests of the claim; that means differ by at most a bound, if two one-sided tests do. The
error of a mean follows from the runs of all rows of the table (`significance.py`).

The order of two accuracies has a second test, that of the test losses of the same runs. It decides
where the accuracies differ by less than noise and point the same way.

That a row recovers what one without compression reaches is answered by an interval (`recovery.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from statistics import fmean
from typing import NamedTuple

from gcbench.papers.claims.recovery import POWER, SEEDS, Recovery
from gcbench.papers.claims.relations import Relation
from gcbench.runner.report.significance import LEVEL, Error, Noise, holm


class Verdict(Enum):
    """A verdict on a relation or a claim, and what it means, as reports print it."""

    meaning: str

    def __new__(cls, text: str, meaning: str) -> Verdict:
        verdict = object.__new__(cls)
        verdict._value_ = text
        verdict.meaning = meaning
        return verdict

    REPRODUCED = "reproduced", "everything that is asked holds, by more than noise"
    IN_PART = "in part", "some of what is asked holds, and of some the opposite holds"
    WITHIN_NOISE = (
        "within noise",
        "the means are as is asked, some of them by less than noise",
    )
    CONTRARY = "contrary at this budget", "the opposite holds, by more than noise"
    CONSISTENT = "consistent", "it holds where the paper's own number was an input"
    COVERED = "covered by tests", "tests check it, and passed at the commit shown"
    NOT_DECIDED = (
        "not decided",
        "some means are contrary to what is asked, by less than noise, or too few seeds tell "
        "whether a gap is within its tolerance",
    )
    NOT_YET = "not yet", "runs, a study or passed tests are missing"


DECIDED = {
    Verdict.REPRODUCED,
    Verdict.IN_PART,
    Verdict.CONTRARY,
    Verdict.CONSISTENT,
    Verdict.COVERED,
}


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a claim from those on its parts, all of which have to hold."""
    kinds = set(verdicts)
    if not kinds or Verdict.NOT_YET in kinds:
        return Verdict.NOT_YET
    if Verdict.CONTRARY in kinds:
        holds = kinds & {Verdict.REPRODUCED, Verdict.COVERED, Verdict.IN_PART}
        return Verdict.IN_PART if holds else Verdict.CONTRARY
    weakest_first = (
        Verdict.NOT_DECIDED,
        Verdict.WITHIN_NOISE,
        Verdict.IN_PART,
        Verdict.CONSISTENT,
        Verdict.REPRODUCED,
        Verdict.COVERED,
    )
    return next(verdict for verdict in weakest_first if verdict in kinds)


class Value(NamedTuple):
    """The numbers of a row by seed, or one `exact` number if it is the same for all seeds."""

    by_seed: Mapping[int, float] = {}  # infinite where training diverged
    exact: float | None = None
    each: str = "seed"  # what there is a number of; of "step": measured seconds

    @property
    def mean(self) -> float:
        """Return the mean over seeds; NaN if some diverged and others did not."""
        if self.exact is not None:
            return self.exact
        infinite = {x for x in self.by_seed.values() if math.isinf(x)}
        if infinite and len(set(self.by_seed.values())) > 1:
            return math.nan
        return fmean(self.by_seed.values())


class Margin(NamedTuple):
    """The margin by which a relation between means of rows holds, and its error."""

    relation: Relation
    known: bool = True  # whether all of its rows have numbers
    mean: float = math.nan  # by how much the relation holds; negative if it is violated
    error: Error | None = None  # of the mean; None if it is not known
    counts: tuple[int, ...] = ()  # the number of seeds of each row; empty if none depends on one
    each: str = "seed"
    of_loss: Margin | None = None  # that of the test losses, if it may decide
    waits: bool = False  # for more steps, however it stands after these
    recovers: bool = False  # whether it says that a row recovers what one without compression has
    recovery: Recovery | None = None  # how far that row ends behind

    @property
    def p(self) -> float:
        """Return how likely a margin as far from zero is, in either direction, by chance.

        That an equality holds is margin in both directions, so that each of the two one-sided tests
        may take the whole of `LEVEL` (Schuirmann 1987).
        """
        if self.error is None or math.isnan(self.mean):
            return 1.0
        if self.error.standard == 0:
            return 0.0
        one_sided = self.error.p_above(abs(self.mean))
        return one_sided if self.relation.sign == "==" and self.mean > 0 else 2 * one_sided


class Judged(NamedTuple):
    """A relation, and whether it holds."""

    margin: Margin
    verdict: Verdict
    by_loss: Verdict | None = None  # what the test losses say, if they differ by more than noise
    decided_by_loss: bool = False
    so_far: Verdict | None = None  # what would be the verdict if it did not wait for more steps

    @property
    def is_disputed(self) -> bool:
        """Return whether accuracies and test losses decide it in opposite ways."""
        verdict = self.so_far or self.verdict
        return verdict in DECIDED and self.by_loss not in (None, verdict)

    @property
    def recovery_text(self) -> str:
        """Return how far the row ends behind, and what that says of the relation."""
        verdict, recovery = self.so_far or self.verdict, self.margin.recovery
        word = verdict.value.removesuffix(" at this budget")
        if recovery and recovery.equal and verdict is Verdict.REPRODUCED:
            word += f" as equal (power {recovery.power:.2f})"
        elif recovery and recovery.power <= POWER and verdict is Verdict.NOT_DECIDED:
            word += f" (power {recovery.power:.2f})"
        return f"{recovery.text if recovery else self.text}: {word}"

    @property
    def text(self) -> str:
        relation, _, mean, error, counts, each, of_loss, *_ = self.margin
        if not counts:
            return f"{relation.text}: {mean:+.3g}" + " (untested)" * (each == "step")
        seeds = " and ".join(map(str, sorted(set(counts)))) + f" {each}{'s' * (set(counts) != {1})}"
        if of_loss and of_loss.error and math.isfinite(of_loss.mean):
            seeds = f"test loss {of_loss.mean:+.3g} +- {of_loss.error.half_width():.2g}, {seeds}"
        if error is None:
            return f"{relation.text}: {mean:+.3g} (error not known, {seeds})"
        if not math.isfinite(mean):
            return f"{relation.text}: {mean:+.3g} ({seeds})"
        return f"{relation.text}: {mean:+.3g} +- {error.half_width():.2g} ({seeds})"


def find_margins(
    relations: Sequence[Relation], values: Mapping[str, Value], noise: Noise
) -> list[Margin]:
    """Return the margin of each relation between rows whose runs differ by this noise."""
    return [_margin(relation, values, noise) for relation in relations]


def _margin(relation: Relation, values: Mapping[str, Value], noise: Noise) -> Margin:
    if not values.keys() >= set(relation.names):
        return Margin(relation, known=False)
    rows = {name: values[name] for name in relation.names}
    mean = relation.margin(relation.difference({name: row.mean for name, row in rows.items()}))
    seeded = {name: row.by_seed for name, row in rows.items() if row.exact is None}
    each = next((row.each for row in rows.values()), "seed")
    if not seeded:
        return Margin(relation, mean=mean, each=each)
    if math.isfinite(mean):
        error = noise.error(seeded, {name: relation.weights[name] for name in seeded})
    else:
        error = Error(0.0, 1)  # one side diverged with every seed, or the mean is not known
    return Margin(relation, True, mean, error, tuple(map(len, seeded.values())), each)


def judge(margins: Sequence[Margin]) -> list[Judged]:
    """Return the verdicts on all relations of a claim."""
    tests = [test for margin in margins for test in (margin, margin.of_loss) if test]
    seeded = [test for test in tests if test.counts]
    adjusted = iter(holm([test.p for test in seeded]))
    p_values = iter([next(adjusted) if test.counts else 0.0 for test in tests])
    judged = [
        _judge(margin, next(p_values), next(p_values) if margin.of_loss else 1.0)
        for margin in margins
    ]
    return [
        one._replace(verdict=Verdict.NOT_YET, so_far=one.verdict)
        if one.margin.waits and one.margin.known
        else one
        for one in judged
    ]


def _judge(margin: Margin, p: float, p_of_loss: float) -> Judged:
    of_loss, mean = margin.of_loss, margin.mean
    by_loss = None
    if of_loss and of_loss.mean and p_of_loss < LEVEL:
        by_loss = Verdict.REPRODUCED if of_loss.mean > 0 else Verdict.CONTRARY
    if not margin.known:
        return Judged(margin, Verdict.NOT_YET)
    sign = margin.relation.sign
    holds = mean > 0 or (mean == 0 and sign != ">")
    if margin.recovers and margin.counts:
        return Judged(margin, _judge_recovery(margin, p < LEVEL, holds))
    if p < LEVEL:
        return Judged(margin, Verdict.REPRODUCED if holds else Verdict.CONTRARY, by_loss)
    if by_loss and of_loss and mean * of_loss.mean >= 0:
        return Judged(margin, by_loss, by_loss, decided_by_loss=True)
    return Judged(margin, Verdict.WITHIN_NOISE if holds else Verdict.NOT_DECIDED, by_loss)


def _judge_recovery(margin: Margin, tells: bool, holds: bool) -> Verdict:
    """Return what an interval says, of two seeds or more, that is on one side of its tolerance.

    That means are equal is shown only by seeds that are likely to show it, if they are.
    """
    if not tells or min(margin.counts) < SEEDS:
        return Verdict.NOT_DECIDED
    power = margin.recovery.power if margin.recovery else 0.0
    if holds and margin.relation.sign == "==" and power <= POWER:
        return Verdict.NOT_DECIDED
    return Verdict.REPRODUCED if holds else Verdict.CONTRARY
