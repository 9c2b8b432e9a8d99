"""The runs and studies that claims lack, the commands that make them, and what those cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from gcbench.records.files import ENDED
from gcbench.records.store import RecordedRun
from gcbench.report.claims import BUDGETS, LEARNING_RATE, Claim, Rows
from gcbench.report.claims_answers import AnsweredClaim, asks
from gcbench.report.claims_evidence import RATES, Evidence
from gcbench.report.commands import commands
from gcbench.report.configs import PAPER, compose_row
from gcbench.report.rows import RATE

SEEDS = (1, 2, 3)  # with which a row is compared
MORE_SEEDS = (4, 5, 6)  # where three leave a claim open


class MissingRuns(NamedTuple):
    """A row that a claim lacks, with some seeds."""

    experiment: str
    words: tuple[str, ...]  # typed beside it, budget=cpu among them
    seeds: tuple[int, ...]

    @property
    def budget(self) -> str:
        typed = (word.removeprefix("budget=") for word in self.words if word.startswith("budget="))
        return next(typed, PAPER)


class Step(NamedTuple):
    """Commands that would bring a claim nearer to a verdict, and what they cost together."""

    commands: list[str]
    cost: str


def missing_runs(claims: Iterable[AnsweredClaim], evidence: Evidence) -> list[MissingRuns]:
    """Return the rows and seeds that undecided claims lack, each once, in the claims' order.

    Rows of claims that need a machine are those at the paper's budget; of others, those of the
    budget that has runs, or else of the smallest that is asked. Where every row has its seeds and a
    claim is open all the same, it lacks three more seeds.
    """
    missing: dict[MissingRuns, None] = {}
    for claim in claims:
        if not claim.decided:
            missing |= dict.fromkeys(_missing_of(claim, evidence))
    return list(missing)


def _missing_of(answered: AnsweredClaim, evidence: Evidence) -> list[MissingRuns]:
    claim = answered.claim
    parts = [(part, _budget(answered, part)) for part in claim.check.rows]
    lacking = _lacking_of(parts, evidence, SEEDS)
    if lacking or claim.check.open or not _has_runs(answered):
        return lacking
    return _lacking_of(parts, evidence, MORE_SEEDS)


def _lacking_of(
    parts: Sequence[tuple[Rows, str]], evidence: Evidence, wanted: Sequence[int]
) -> list[MissingRuns]:
    """Return what the rows lack, each once, as parts share rows."""
    runs = (run for part, budget in parts for run in _lacking(part, budget, evidence, wanted))
    return list(dict.fromkeys(runs))


def _has_runs(answered: AnsweredClaim) -> bool:
    return answered.answer.budget is not None


def _budget(answered: AnsweredClaim, part: Rows) -> str:
    if answered.claim.machine:
        return PAPER
    budget = answered.answer.budget or BUDGETS[-1]
    return budget if asks(part, budget) else part.budgets[0]


def _lacking(
    part: Rows, budget: str, evidence: Evidence, wanted: Sequence[int]
) -> list[MissingRuns]:
    lacking = []
    for path in part.paths:
        row, spec = evidence.row(path, "accuracy", budget), evidence.spec(path)
        typed = [f"budget={budget}"] if budget != PAPER else []
        words = (*row.own_words, *evidence.words, *typed)
        seeds = set(wanted) - {run.seed for run in row.runs if run.status in ENDED}
        if part.measure == LEARNING_RATE:
            rate = compose_row(spec, budget).config["optimizer"]["lr"]
            rates = ",".join(f"{rate * factor:g}" for factor in RATES)
            words, seeds = (*words, f"{RATE}={rates}"), set(wanted)
        if seeds:
            lacking.append(MissingRuns(str(spec.experiment), words, tuple(sorted(seeds))))
    return lacking


def steps_of(answered: AnsweredClaim, evidence: Evidence) -> list[Step]:
    """Return the commands that would decide a claim, each with its cost."""
    if answered.decided:
        return []
    by_kind: dict[tuple[str, tuple[int, ...]], list[MissingRuns]] = {}
    for run in _missing_of(answered, evidence):
        by_kind.setdefault((run.budget, run.seeds), []).append(run)
    steps = []
    for (budget, seeds), runs in by_kind.items():
        rows = [(run.experiment, [w for w in run.words if w != f"budget={budget}"]) for run in runs]
        cost = describe_cost(answered.claim, runs, evidence.runs)
        steps.append(Step(commands(rows, budget, seeds), cost))
    steps += [
        Step([f"gcbench study {part.name}"], "minutes of one core")
        for part in answered.claim.check.study
        if evidence.study(part.name) is None
    ]
    if answered.claim.check.tests and not evidence.passed(answered.claim.check.tests):
        steps.append(Step(["scripts/claims_tests"], "minutes of one core"))
    return steps


def describe_cost(claim: Claim, missing: Sequence[MissingRuns], kept: Sequence[RecordedRun]) -> str:
    """Return what runs cost: in core-hours by kept runs of the same tables, else an estimate."""
    count = sum(len(run.seeds) for run in missing)
    number = f"{count} run{'s' * (count > 1)}"
    if claim.machine:
        hours = f", about {claim.gpu_hours:g} GPU-hours (an estimate)" if claim.gpu_hours else ""
        return f"{number}; {claim.machine}{hours}"
    hours_of_runs = [(_core_hours(run, kept), len(run.seeds)) for run in missing]
    known = [(hours, seeds) for hours, seeds in hours_of_runs if hours is not None]
    if not known:
        return f"{number}; nothing like it has run yet"
    each = fmean(hours for hours, _ in known)
    total = sum((each if hours is None else hours) * seeds for hours, seeds in hours_of_runs)
    return f"{number}, about {total:.2g} core-hours"


def _core_hours(missing: MissingRuns, kept: Sequence[RecordedRun]) -> float | None:
    """Return the mean of kept runs of the row, else of its table, at the same budget."""
    at_budget = [run for run in kept if run.budget == missing.budget and run.done]
    same = [run for run in at_budget if run.experiment == missing.experiment]
    table = missing.experiment.rpartition("/")[0]
    near = same or [r for r in at_budget if str(r.experiment).rpartition("/")[0] == table]
    hours = [
        run.result.duration * (run.result.processes or 1) * (run.result.threads or 1) / 3600
        for run in near
    ]
    return fmean(hours) if hours else None
