"""The runs and studies that claims lack, the commands that make them, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from gcbench.papers.claims.answers import AnsweredClaim, NextCommands
from gcbench.papers.claims.claim import Claim
from gcbench.papers.claims.evidence import RATES, Evidence
from gcbench.papers.claims.recovery_evidence import is_waiting
from gcbench.papers.claims.relations import BUDGETS, LEARNING_RATE, STEPS, RowRelations
from gcbench.papers.tables.command_lines import command_lines
from gcbench.papers.tables.configs import compose, compose_row
from gcbench.papers.tables.rates import RATE
from gcbench.runner.config.budget import PAPER
from gcbench.runner.records.files import ENDED
from gcbench.runner.records.store import RecordedRun

SEEDS = (1, 2, 3)  # the seeds of every row, whatever they show
SIX_SEEDS = (1, 2, 3, 4, 5, 6)  # those of all rows of a table one of whose rows has more than three


class MissingRuns(NamedTuple):
    """A row whose runs with these seeds a claim lacks."""

    experiment: str
    overrides: tuple[str, ...]  # added to the experiment
    budget: str
    seeds: tuple[int, ...]


def planned_seeds(path: str, score: str, budget: str, evidence: Evidence) -> tuple[int, ...]:
    """Return the seeds of a row, which are those of all rows of its table.

    They do not depend on what the runs have shown: seeds that are added until something differs
    find a difference between equal rows once in four times.
    """
    rows = [evidence.row(other, score, budget) for other in evidence.rows_beside(path)]
    ended = {run.seed for row in rows for run in row.runs if run.status in ENDED}
    return SIX_SEEDS if ended & {*SIX_SEEDS} - {*SEEDS} else SEEDS


def missing_runs(
    parts: Iterable[tuple[RowRelations, str]], evidence: Evidence, seeds: Sequence[int] = ()
) -> list[MissingRuns]:
    """Return the runs that the rows of these parts lack, each part at its budget.

    They lack those with `seeds`, by default the planned ones.

    Runs are listed once: parts share rows, and rows of several tables need the same run if one
    model stands in for theirs. Rows with different backends stay apart, because times depend on the
    backend, although it is not part of the identity.
    """
    missing: dict[tuple[str, str, tuple[int, ...]], MissingRuns] = {}
    for part, budget in parts:
        for run in _lacking(part, budget, evidence, seeds):
            made = compose(run.experiment, run.budget, run.overrides)
            missing.setdefault((made.identity, made.run.trainer.backend, run.seeds), run)
    return list(missing.values())


def _missing_of(answered: AnsweredClaim, evidence: Evidence) -> list[MissingRuns]:
    """Return the rows and seeds that a claim lacks.

    A claim that needs a special machine is completed at the paper's budget, any other claim at the
    budget that already has runs, or else at the smallest one, unless it waits for more steps.
    """
    parts = [(part, _budget(answered, part, evidence)) for part in answered.claim.rows]
    return missing_runs(parts, evidence)


def _budget(answered: AnsweredClaim, part: RowRelations, evidence: Evidence) -> str:
    if answered.claim.machine:
        return PAPER
    budget = answered.answer.budget or BUDGETS[-1]
    if any(is_waiting(part, budget, evidence) for part in answered.claim.rows):
        budget = STEPS
    return budget if budget in part.budgets else part.budgets[0]


def _lacking(
    part: RowRelations, budget: str, evidence: Evidence, seeds: Sequence[int]
) -> Iterator[MissingRuns]:
    for path in part.paths:
        row = evidence.row(path, part.score, budget)
        experiment = str(row.spec.experiment)
        variants = [(row.all_overrides, row.runs)]
        if part.measure == LEARNING_RATE:
            rate = compose_row(row.spec, budget).run.optimizer.lr
            swept = [f"{RATE}={rate * factor:g}" for factor in RATES]
            runs = [*row.runs, *(row.grid.runs if row.grid else ())]
            variants = [
                (
                    (*row.own_overrides, *row.typed, override),
                    [run for run in runs if f"{RATE}={run.flat[RATE]:g}" == override],
                )
                for override in swept
            ]
        for typed, runs in variants:
            planned = seeds or planned_seeds(path, part.score, budget, evidence)
            if lacking := lacking_seeds(runs, planned):
                yield MissingRuns(experiment, typed, row.budget, lacking)


def lacking_seeds(runs: Iterable[RecordedRun], seeds: Iterable[int]) -> tuple[int, ...]:
    """Return the seeds with which none of these runs has ended, but for stale ones."""
    ended = {run.seed for run in runs if run.status in ENDED and not run.outdated_by}
    return tuple(sorted({*seeds} - ended))


def steps_of(answered: AnsweredClaim, evidence: Evidence) -> list[NextCommands]:
    """Return the commands that would decide a claim, each with its cost."""
    if answered.decided:
        return []
    by_kind: dict[tuple[str, tuple[int, ...]], list[MissingRuns]] = {}
    for run in _missing_of(answered, evidence):
        by_kind.setdefault((run.budget, run.seeds), []).append(run)
    steps = []
    for (budget, seeds), runs in by_kind.items():
        rows = [(run.experiment, run.overrides) for run in runs]
        cost = describe_cost(answered.claim, runs, evidence.runs)
        steps.append(NextCommands(command_lines(rows, budget, seeds), cost))
    steps += [
        NextCommands([_command_of(name)], "minutes of one core")
        for name in dict.fromkeys(part.name for part in answered.claim.studies)
        if evidence.study(name) is None
    ]
    if answered.claim.tests and not evidence.passed(answered.claim.tests):
        steps.append(NextCommands(["scripts/claims_tests"], "minutes of one core"))
    return steps


def _command_of(study: str) -> str:
    """Return the command that makes a study, or a table of links with a command of its own."""
    links = study.removeprefix("links/")
    return f"gcbench papers studies {study}" if links == study else f"scripts/turns {links}"


def describe_cost(claim: Claim, missing: Sequence[MissingRuns], kept: Sequence[RecordedRun]) -> str:
    """Return the number of missing runs, and their cost in core-hours, from similar kept runs.

    For a claim that needs a special machine, return the claim's own estimate in GPU-hours instead.
    """
    count = sum(len(run.seeds) for run in missing)
    number = f"{count} run{'s' * (count > 1)}"
    if claim.machine:
        hours = f", about {claim.gpu_hours:g} GPU-hours (an estimate)" if claim.gpu_hours else ""
        return f"{number}; {claim.machine}{hours}"
    hours_of_runs = [(_estimate_core_hours(run, kept), len(run.seeds)) for run in missing]
    known = [(hours, seeds) for hours, seeds in hours_of_runs if hours is not None]
    if not known:
        return f"{number}; nothing like it has run yet"
    each = fmean(hours for hours, _ in known)
    total = sum((each if hours is None else hours) * seeds for hours, seeds in hours_of_runs)
    return f"{number}, about {total:.2g} core-hours"


def _estimate_core_hours(missing: MissingRuns, kept: Sequence[RecordedRun]) -> float | None:
    """Return the core-hours of the shortest kept run of the row, else of its table, at its budget.

    Longer runs may have been paused, or have shared their cores. None if there is no such run.
    """
    at_budget = [run for run in kept if run.budget == missing.budget and run.done]
    same = [run for run in at_budget if run.experiment == missing.experiment]
    table = missing.experiment.rpartition("/")[0]
    near = same or [r for r in at_budget if str(r.experiment).rpartition("/")[0] == table]
    return min(map(_core_hours_of_run, near), default=None)


def _core_hours_of_run(run: RecordedRun) -> float:
    """Return the core-hours of a whole run, at its pace since it was last resumed."""
    result = run.result
    continued = (result.steps or 0) / result.steps_taken if result.steps_taken else 1.0
    return result.duration * continued * result.cores / 3600
