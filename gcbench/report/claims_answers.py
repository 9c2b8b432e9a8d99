"""Answers to the claims, from tests, studies and the runs of one budget at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gcbench.report.claims import BUDGETS, LEARNING_RATE, Claim, Rows, StudyRows, join_path
from gcbench.report.claims_evidence import (
    RATES,
    Evidence,
    Measured,
    describe,
    describe_stand_ins,
    measure_row,
    measure_study,
    pool_deviations,
    values_of,
)
from gcbench.report.claims_relations import Judged, Verdict, judge, worst
from gcbench.report.commands import commands
from gcbench.report.configs import PAPER, compose_row
from gcbench.report.measures import SCORES
from gcbench.report.rows import RATE
from gcbench.report.tables import TableRow

MANY = 24  # rows of a study, whose file a reader looks up
SEEDS = (1, 2, 3)  # with which a missing row is run


class Wanted(NamedTuple):
    """A row that should run."""

    spec: TableRow
    rates: bool  # with several learning rates


class Part(NamedTuple):
    """The verdict of one measure of one budget, of one study or of the tests."""

    verdict: Verdict
    basis: str  # tests | study | budget paper | budget cpu | nothing
    evidence: str
    wanted: tuple[Wanted, ...] = ()
    command: str | None = None  # of a study that has not run


class Answer(NamedTuple):
    """The verdict on a claim at one budget, and what it rests on."""

    verdict: Verdict
    bases: tuple[str, ...]
    evidence: list[str]
    but: str | None = None

    @property
    def text(self) -> str:
        if self.verdict is Verdict.NOT_YET:
            return "not yet"
        in_part = (
            f" in part (but not {self.but})"
            if self.but and self.verdict is not Verdict.REFUTED
            else ""
        )
        verdict = self.verdict.value.replace("reproduced", f"reproduced{in_part}")
        return f"{verdict}, {' and '.join(describe_basis(basis) for basis in self.bases)}"


class AnsweredClaim(NamedTuple):
    """A claim with its answers, and the commands that would decide what is not decided."""

    claim: Claim
    answers: list[Answer]  # one a budget that has any; the first one counts
    commands: list[str]

    @property
    def answer(self) -> Answer:
        return self.answers[0]


def describe_basis(basis: str) -> str:
    """Return what an answer rests on, as it stands in a sentence."""
    return {
        "tests": "by tests",
        "study": "by a study",
        "budget cpu": "at budget cpu (an indication)",
    }.get(basis, f"at {basis}")


def answer_claim(claim: Claim, evidence: Evidence) -> AnsweredClaim:
    """Return the answers to a claim, one for every budget that has numbers."""
    fixed = [
        *_tests(claim),
        *(_judge_study(part, evidence) for part in claim.check.study),
        *_open(claim),
    ]
    by_budget = {budget: list(_judge_budget(budget, claim, evidence)) for budget in BUDGETS}
    answers = [
        _answer(claim, [*fixed, *parts], _not_asked(claim, budget))
        for budget, parts in by_budget.items()
        if any(_has_numbers(part) for part in parts)
    ]
    # A stable sort: answers stay in the order of the budgets.
    answers = sorted(answers, key=lambda answer: answer.verdict is Verdict.NOT_YET)
    answers = answers or [_answer(claim, [*fixed, *by_budget[PAPER]])]
    undecided = answers[0].verdict in (Verdict.NOT_YET, Verdict.NOT_DECIDED)
    return AnsweredClaim(
        claim,
        answers,
        _commands([*by_budget[PAPER], *fixed], evidence.words) if undecided else [],
    )


def _has_numbers(part: Part) -> bool:
    return part.verdict is not Verdict.NOT_YET or "(n=" in part.evidence


def _not_asked(claim: Claim, budget: str) -> list[str]:
    names = dict.fromkeys(
        part.measure.replace("_", " ") for part in claim.check.rows if budget not in part.budgets
    )
    return [f"{name} is not asked at budget {budget}" for name in names]


def _answer(claim: Claim, parts: Sequence[Part], not_asked: Sequence[str] = ()) -> Answer:
    verdict = worst([part.verdict for part in parts])
    bases = tuple(
        dict.fromkeys(part.basis for part in parts if part.verdict is not Verdict.NOT_YET)
    )
    return Answer(verdict, bases, [*(part.evidence for part in parts), *not_asked], claim.but)


def _tests(claim: Claim) -> Iterator[Part]:
    if claim.check.tests:
        yield Part(Verdict.REPRODUCED, "tests", f"held by tests/{', '.join(claim.check.tests)}")


def _open(claim: Claim) -> Iterator[Part]:
    if claim.check.open:
        yield Part(Verdict.NOT_YET, "nothing", claim.check.open)


def _judge_study(part: StudyRows, evidence: Evidence) -> Part:
    study = evidence.study(part.name)
    rows: Mapping[str, Any] = (
        {join_path(row.get("table", ""), row["row"]): row for row in study["rows"]} if study else {}
    )
    measured = {name: measure_study(rows.get(name, {}).get(part.column)) for name in part.names}
    judged = _judge_relations(part, measured)
    labels = _labels(part, measured)
    title = f"study {part.name}, {part.column.replace('_', ' ')}"
    if len(measured) > MANY and all(m.value for m in measured.values()):
        text = describe(f"{title} of {len(measured)} rows", {}, judged)
    else:
        text = describe(title, {labels[name]: m for name, m in measured.items()}, judged)
    verdict = worst([one.verdict for one in judged])
    return Part(
        verdict,
        "study",
        text,
        command=f"gcbench study {part.name}" if verdict is Verdict.NOT_YET else None,
    )


def _judge_budget(budget: str, claim: Claim, evidence: Evidence) -> Iterator[Part]:
    for part in claim.check.rows:
        if budget in part.budgets:
            yield _judge_rows(part, budget, evidence)


def _judge_rows(part: Rows, budget: str, evidence: Evidence) -> Part:
    score = part.measure if part.measure in SCORES else "accuracy"
    rows = {path: evidence.row(path, score, budget) for path in part.paths}
    measured = pool_deviations({path: measure_row(row, part.measure) for path, row in rows.items()})
    judged = _judge_relations(part, measured)
    verdicts = [one.verdict for one in judged]
    if budget != PAPER or part.elsewhere:  # that is not what the paper speaks of
        verdicts = [
            Verdict.NOT_DECIDED if verdict is Verdict.REFUTED else verdict for verdict in verdicts
        ]
    verdict = worst(verdicts)
    labels = _labels(part, measured)
    beside = f" with {' '.join(evidence.words)}" if evidence.words else ""
    title = f"{part.measure.replace('_', ' ')} at budget {budget}{beside}"
    title += describe_stand_ins(rows.values())
    text = describe(title, {labels[path]: m for path, m in measured.items()}, judged)
    if tables := evidence.tables(part.paths):
        text += f"; see {', '.join(tables)}"
    few = len(SEEDS) if verdict is Verdict.NOT_DECIDED else 1  # seeds that decide nothing
    rates = part.measure == LEARNING_RATE
    wanted = (Wanted(evidence.spec(path), rates) for path, m in measured.items() if m.n < few)
    return Part(verdict, f"budget {budget}", text, tuple(wanted))


def _judge_relations(part: Rows | StudyRows, measured: Mapping[str, Measured]) -> list[Judged]:
    values = values_of(measured)
    return [
        judge(
            relation,
            {
                name: values[join_path(folder, name)]
                for name in relation.names
                if join_path(folder, name) in values
            },
        )
        for folder, relation in part.relations
    ]


def _labels(part: Rows | StudyRows, paths: Iterable[str]) -> dict[str, str]:
    """Return each path without what all of them share."""
    shared = (
        len(join_path(part.of[0], ""))
        if len(part.of) == 1
        else len(part.of[0].partition("/")[0]) + 1
    )
    return {path: path[shared:] for path in paths}


def _commands(parts: Sequence[Part], typed: tuple[str, ...]) -> list[str]:
    """Return what runs the rows at the paper's budget, and the studies."""
    rows = []
    for spec, rates in (wanted for part in parts for wanted in part.wanted):
        words = (*spec.words, *typed)
        if rates:
            rate = compose_row(spec).config["optimizer"]["lr"]
            words += (f"{RATE}={','.join(f'{rate * factor:g}' for factor in RATES)}",)
        rows.append((str(spec.experiment), words))
    studies = dict.fromkeys(part.command for part in parts if part.command)
    return [*commands(rows, PAPER, SEEDS), *studies]
