"""Answers to the claims, from tests, studies and the runs of one budget at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gcbench.papers.claims.claim import Claim
from gcbench.papers.claims.evidence import (
    Evidence,
    Measured,
    describe,
    describe_stand_ins,
    measure_row,
    measure_study,
)
from gcbench.papers.claims.recovery_evidence import laws_of, with_recovery
from gcbench.papers.claims.relations import (
    BUDGETS,
    STEPS,
    Related,
    RowRelations,
    StudyRelations,
)
from gcbench.papers.claims.verdicts import (
    DECIDED,
    Judged,
    Margin,
    Verdict,
    combine,
    find_margins,
    judge,
)
from gcbench.papers.tables.measured import setting_of
from gcbench.papers.tables.rows import Row
from gcbench.runner.records.store import RecordedRun, sort_by_age
from gcbench.runner.report.document import DIRTY, marks_of
from gcbench.runner.report.listing import dirty_of, older_than
from gcbench.runner.report.measures import LOWER
from gcbench.runner.report.significance import Noise

SEEDS = 3  # of each row, before a budget counts against one that is further from the paper
MANY = 24  # rows of a study above which its numbers are not listed, as its file has them


class Part(NamedTuple):
    """A part of a claim's evidence: one measure at one budget, one study, or the tests."""

    basis: str  # what it rests on; empty if there are no numbers
    margins: Sequence[Margin]
    describe: Callable[[Sequence[Judged]], str]  # the evidence, given the verdicts on the margins
    verdict: Verdict | None = None  # without margins
    runs: frozenset[RecordedRun] = frozenset()  # that it rests on


class Answer(NamedTuple):
    """The verdict on a claim at one budget, and what it rests on."""

    verdict: Verdict
    budget: str | None  # None if it rests on no runs
    bases: tuple[str, ...]
    evidence: list[str]
    but: str | None = None
    complete: bool = True  # whether all rows have at least three seeds
    waits: bool = False  # whether a part of it is judged only after the paper's number of steps
    marks: str = ""  # of runs from a checkout with changes, and of stale ones

    @property
    def short(self) -> str:
        """Return the verdict and what it rests on."""
        asked = self.bases if self.verdict is not Verdict.NOT_YET else ()
        if self.waits and not asked:
            asked = (f"recovery waits for budget {STEPS}",)
        basis = f" ({', '.join(asked)}){self.marks}" if asked else ""
        return f"{self.verdict.value}{basis}"

    @property
    def text(self) -> str:
        """Return the verdict, what it rests on, and what does not hold."""
        but = f", but not {self.but}" if self.but and self.verdict is Verdict.IN_PART else ""
        return self.short + but


class NextCommands(NamedTuple):
    """Commands that would bring a claim closer to a verdict, and what they cost together."""

    commands: list[str]
    cost: str


class AnsweredClaim(NamedTuple):
    """A claim with its answers."""

    claim: Claim
    answers: list[Answer]  # one for each budget that has any; the first one counts
    steps: Sequence[NextCommands] = ()  # what to run to decide it

    @property
    def answer(self) -> Answer:
        return self.answers[0]

    @property
    def decided(self) -> bool:
        return self.answer.verdict in DECIDED


def answer_claim(claim: Claim, evidence: Evidence) -> AnsweredClaim:
    """Return the answers to a claim, one for every budget that has numbers.

    Of those budgets at which all rows have their seeds, the one closest to the paper comes first,
    whatever it says.
    """
    fixed = list(_parts_at_any_budget(claim, evidence))
    answers = []
    for budget in filter(evidence.by_budget.__contains__, BUDGETS):
        measured = [_compare_rows(p, budget, evidence) for p in claim.rows if budget in p.budgets]
        if any(part.basis for part in measured):
            answers.append(_answer(claim, [*fixed, *measured], budget))
    answers.sort(key=lambda a: (a.verdict is Verdict.NOT_YET, not a.complete))
    if not answers and claim.machine and any(part.basis for part in fixed):
        answers.append(_answer(claim, fixed, None))
        answers[0].evidence.append(f"its runs need a machine that is not at hand: {claim.machine}")
    laws = list(laws_of(claim, evidence)) if answers else []
    for answer in answers:
        answer.evidence.extend(laws)
    unanswered = [_compare_rows(part, part.budgets[0], evidence) for part in claim.rows]
    return AnsweredClaim(claim, answers or [_answer(claim, [*fixed, *unanswered], None)])


def _answer(claim: Claim, parts: list[Part], budget: str | None) -> Answer:
    judged = judge([margin for part in parts for margin in part.margins])
    of_parts = iter(judged)
    texts = [part.describe([next(of_parts) for _ in part.margins]) for part in parts]
    others = [part.verdict for part in parts if part.verdict]
    verdict = combine([*others, *(one.verdict for one in judged)])
    waits = any(one.so_far for one in judged)
    so_far = combine([*others, *(one.verdict for one in judged if not one.so_far)])
    if waits and so_far is Verdict.IN_PART:  # whatever the others bring
        verdict = so_far
    if claim.but and verdict in (Verdict.REPRODUCED, Verdict.COVERED):
        verdict = Verdict.IN_PART
    if claim.input and verdict is Verdict.REPRODUCED:
        verdict = Verdict.CONSISTENT
    bases = dict.fromkeys(part.basis for part in parts if part.basis)
    if any(one.decided_by_loss for one in judged):
        bases["by test loss"] = None
    if any(one.is_disputed for one in judged):
        bases["test losses disagree"] = None
    not_asked = dict.fromkeys(
        f"{part.measure.replace('_', ' ')} is not asked at budget {budget}"
        for part in claim.rows
        if budget and budget not in part.budgets
    )
    evidence = [*texts, *not_asked]
    if claim.input:
        evidence.append(f"the answer starts from {claim.input}")
    complete = all(
        one.margin.known and all(n >= SEEDS for n in one.margin.counts) for one in judged
    )
    runs = sort_by_age({run for part in parts for run in part.runs})
    evidence += [*dirty_of([run.result for run in runs], f"{DIRTY} "), *older_than(runs)]
    return Answer(
        verdict,
        budget,
        tuple(bases),
        evidence,
        claim.but,
        complete,
        waits and not claim.machine,
        marks_of(runs),
    )


def _parts_at_any_budget(claim: Claim, evidence: Evidence) -> Iterator[Part]:
    """Yield the parts that rest on tests and studies."""
    tests = claim.tests
    if tests and evidence.tests and evidence.passed(tests):
        commit = evidence.tests.record.commit[:7]
        text = f"passed at {commit}: {', '.join(tests)}"
        yield _without_margins(Verdict.COVERED, f"tests at {commit}", text)
    elif tests:
        wanting = ", ".join(test for test in tests if not evidence.passed([test]))
        yield _without_margins(Verdict.NOT_YET, "", f"not recorded as passed: {wanting}")
    for part in claim.studies:
        yield _compare_study(part, evidence)


def _without_margins(verdict: Verdict, basis: str, text: str) -> Part:
    return Part(basis, [], lambda _: text, verdict)


def _compare_study(part: StudyRelations, evidence: Evidence) -> Part:
    study = evidence.study(part.name)
    rows: Mapping[str, Any] = (
        {"/".join(filter(None, [row.get("table"), row["row"]])): row for row in study["rows"]}
        if study
        else {}
    )
    each = "step" if part.name.startswith("links/") else "seed"
    measured = {path: measure_study(rows.get(path, {}), part.column, each) for path in part.paths}
    every = [measure_study(row, part.column, each) for row in rows.values()]
    title = f"study {part.name}, {part.column.replace('_', ' ')}"
    if each == "step" and not any(m.value and m.value.by_seed for m in measured.values()):
        title += " (medians, untested)"
    labelled = _label(part, measured)
    if len(measured) > MANY and all(m.value for m in measured.values()):
        title, labelled = f"{title} of {len(measured)} rows", {}
    return Part(
        setting_of(study) if study else "",
        _margins(part, measured, every),
        lambda judged: describe(title, labelled, judged),
    )


def _compare_rows(part: RowRelations, budget: str, evidence: Evidence) -> Part:
    rows = {path: evidence.row(path, part.score, budget) for path in part.paths}
    part, repeated = _asked_once(part, rows)
    measured = {path: measure_row(rows[path], part.measure) for path in part.paths}
    of_tables = evidence.measure_tables(part, budget, part.measure)
    has_numbers = any(m.value and rows[path].budget == budget for path, m in measured.items())
    margins = with_recovery(
        part, rows, budget, evidence, _margins(part, measured, of_tables), of_tables
    )
    beside = f" with {' '.join(evidence.overrides)}" if evidence.overrides else ""
    title = f"{part.measure.replace('_', ' ')} at budget {budget}{beside}"
    title += describe_stand_ins(rows.values())
    about = ""
    if repeated:
        has = "have" if len(repeated) > 1 else "has"
        about += f"; {' and '.join(repeated)} {has} the same runs"
    if tables := evidence.tables(part.paths):
        about += f"; see {', '.join(tables)}"
    return Part(
        f"budget {budget}" if has_numbers else "",
        _compare_losses(part, rows, budget, evidence, margins),
        lambda judged: describe(title, _label(part, measured), judged) + about,
        runs=frozenset(run for row in rows.values() for run in row.done),
    )


def _compare_losses(
    part: RowRelations,
    rows: Mapping[str, Row],
    budget: str,
    evidence: Evidence,
    margins: Sequence[Margin],
) -> Sequence[Margin]:
    """Return the margins, those of the order of two accuracies with that of their test losses."""
    if part.measure not in ("accuracy", "error_rate"):
        return margins
    values = {p: v for p in part.paths if (v := measure_row(rows[p], "loss").value) is not None}
    of_tables = evidence.measure_tables(part, budget, "loss")
    noise = Noise([measured.value.by_seed for measured in of_tables if measured.value])
    orders = [margin.relation for margin in margins if margin.known and margin.relation.orders]
    same = part.measure in LOWER
    of_losses = find_margins([one if same else one.swapped for one in orders], values, noise)
    by_relation = dict(zip(map(id, orders), of_losses, strict=True))
    return [margin._replace(of_loss=by_relation.get(id(margin.relation))) for margin in margins]


def _asked_once(part: RowRelations, rows: Mapping[str, Row]) -> tuple[RowRelations, list[str]]:
    """Return the part without folders whose runs repeat those of an earlier one, and these folders.

    At a small budget one model stands in for several, so that their tables have the same runs.
    """
    kept: list[str] = []
    seen = set()
    for folder in part.of:
        runs = tuple(frozenset(rows[path].runs) for path in replace(part, of=(folder,)).paths)
        if runs not in seen or not any(runs):
            kept.append(folder)
        seen.add(runs)
    return replace(part, of=tuple(kept)), [folder for folder in part.of if folder not in kept]


def _margins(
    part: Related, measured: Mapping[str, Measured], of_tables: Iterable[Measured]
) -> list[Margin]:
    """Return the margins of a part, with the noise of all rows of its tables."""
    values = {path: m.value for path, m in measured.items() if m.value is not None}
    noise = Noise([m.value.by_seed for m in of_tables if m.value])
    return find_margins(part.relations, values, noise)


def _label(part: Related, measured: Mapping[str, Measured]) -> dict[str, Measured]:
    """Return `measured`, with its paths relative to the folder that all of them share."""
    first = part.of[0]
    shared = f"{first}/" if len(part.of) == 1 else f"{first.partition('/')[0]}/"
    return {path.removeprefix(shared): m for path, m in measured.items()}
