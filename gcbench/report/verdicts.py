"""The verdicts on the papers' claims."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


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
        "everything that is asked holds or is equal, some of it by less than noise",
    )
    CONTRARY = "contrary at this budget", "the opposite holds, by more than noise"
    CONSISTENT = "consistent", "it holds where the paper's own number was an input"
    COVERED = "covered by tests", "tests check it, and passed at the commit shown"
    NOT_DECIDED = "not decided", "the opposite of what is asked may hold, by less than noise"
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
