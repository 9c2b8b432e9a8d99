"""The runs that tables and claims lack, in order of value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from statistics import median

from gcbench.papers.claims.answers import AnsweredClaim
from gcbench.papers.claims.claim import Claim
from gcbench.papers.claims.evidence import EXACT, Evidence, budget_of
from gcbench.papers.claims.missing import (
    SEEDS,
    MissingRuns,
    lacking_seeds,
    missing_runs,
    planned_seeds,
)
from gcbench.papers.claims.recovery_evidence import is_waiting
from gcbench.papers.claims.relations import BUDGETS
from gcbench.papers.tables.configs import compose, data_folder, experiment_override
from gcbench.papers.tables.tables import Table, TableRow
from gcbench.runner.config.budget import PAPER
from gcbench.runner.identity import Config
from gcbench.runner.report.measures import TIMES

Costs = Callable[[Config], float | None]  # core-seconds of a run; None if not known


@dataclass(eq=False)
class MissingRun:
    """A run that has no result, and the tables and claims that lack it."""

    experiment: str
    overrides: tuple[str, ...]  # added to the experiment
    budget: str
    seed: int
    seconds: float | None  # on one core; None if nothing like it has run
    stale: bool = False  # whether it has run before a change of its numbers
    claims: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    @property
    def row(self) -> tuple[str, ...]:
        """Return what is typed for the run, except its seed."""
        budget = () if self.budget == PAPER else (f"budget={self.budget}",)
        return experiment_override(self.experiment), *budget, *self.overrides


@dataclass(frozen=True)
class Missing:
    """The missing runs in order of value, and the tables and rows that are left out."""

    runs: list[MissingRun]
    timed: list[str]  # tables of times, which runs at the same time would distort
    needing: dict[str, list[str]]  # rows by the special hardware or data that they need


def find_missing(
    tables: Sequence[Table],
    claims: Collection[AnsweredClaim],
    evidence: Evidence,
    budget: str,
    seeds: Sequence[int],
    seconds: Costs,
) -> Missing:
    """Return the runs that tables and undecided claims lack at a budget.

    First come the runs that a change has made stale, then those that undecided claims lack. The
    next claim is always the cheapest to decide, given the runs of the claims before it, whose rows
    it may share. Then comes one run of every row that has none, then further seeds: `seeds`, by
    default the planned ones. A row counts at a smaller budget if it has the same configuration
    there (speech has no recipe of its own at cpu_medium), and at the paper's budget if no budget
    makes it smaller.
    """
    collected = _Collected(evidence, budget, seconds)
    by_claim = {claim.claim.id: collected.of_claim(claim, seeds) for claim in claims}
    first: dict[MissingRun, None] = {}
    while by_claim:
        lacking = {
            name: [run for run in runs if run not in first] for name, runs in by_claim.items()
        }
        cheapest = min(lacking, key=lambda name: collected.about_seconds(lacking[name]))
        first |= dict.fromkeys(lacking[cheapest])
        for run in by_claim.pop(cheapest):
            run.claims.append(cheapest)
    timed = [table.name for table in tables if _asks_for_times_only(table, budget)]
    rest: list[tuple[bool, int, MissingRun]] = []
    for table in tables:
        if table.study or table.name in timed:
            continue
        for row in table.rows:
            wanted = seeds if _has_spread(table, budget) else (seeds or SEEDS)[:1]
            for has_runs, run in collected.of_row(table, row, wanted):
                if table.name not in run.tables:
                    run.tables.append(table.name)
                rest.append((has_runs or run.seed != (seeds or SEEDS)[0], run.seed, run))
    rest.sort(key=lambda one: one[:2])
    unique = dict.fromkeys([*first, *(run for _, _, run in rest)])
    return Missing(sorted(unique, key=lambda run: not run.stale), timed, collected.needing)


def _measures(table: Table, budget: str) -> set[str | None]:
    """Return the measures that the table reads at this budget."""
    return {column.measure for column in table.columns if column.budget in (None, budget)}


def _asks_for_times_only(table: Table, budget: str) -> bool:
    return not table.study and _measures(table, budget) <= TIMES


def _has_spread(table: Table, budget: str) -> bool:
    return not _measures(table, budget) <= TIMES | EXACT


class _Collected:
    """The missing runs, each only once although tables and claims share rows."""

    def __init__(self, evidence: Evidence, budget: str, seconds: Costs) -> None:
        self.needing: dict[str, list[str]] = {}
        self._evidence, self._budget, self._seconds = evidence, budget, seconds
        self._runs: dict[tuple[str, str, int], MissingRun] = {}
        stale = [run for run in evidence.runs if run.outdated_by]
        self._stale = {(run.budget, run.result.identity, run.seed) for run in stale}

    def of_claim(self, answered: AnsweredClaim, seeds: Sequence[int]) -> list[MissingRun]:
        """Return the runs that an undecided claim lacks; none if they would not decide it."""
        claim = answered.claim
        if answered.decided:
            return []
        budget = self._budget_of_claim(claim)
        parts = [
            (part, budget)
            for part in claim.rows
            if budget in part.budgets and part.measure not in TIMES
        ]
        if any(is_waiting(part, budget, self._evidence) for part, _ in parts):
            return []
        rows = [self._evidence.spec(path) for part, _ in parts for path in part.paths]
        if not all(self._is_within_reach(row) for row in rows):
            return []
        return self._each(missing_runs(parts, self._evidence, seeds))

    def about_seconds(self, runs: Collection[MissingRun]) -> float:
        """Return the core-seconds of runs; an unknown cost counts as the median of the known."""
        known = [run.seconds for run in self._runs.values() if run.seconds is not None]
        typical = median(known) if known else 1.0
        return sum(typical if run.seconds is None else run.seconds for run in runs)

    def of_row(
        self, table: Table, row: TableRow, seeds: Sequence[int]
    ) -> list[tuple[bool, MissingRun]]:
        """Return the runs that a row lacks, each with whether the row has any run."""
        if row.path is None or not self._is_within_reach(row):
            return []
        score = str(table.chooser.measure) if table.chooser else "accuracy"
        budget = budget_of(row, self._budget)
        found = self._evidence.row(row.path, score, budget)
        wanted = seeds or planned_seeds(row.path, score, budget, self._evidence)
        missing = MissingRuns(
            str(row.experiment), found.all_overrides, budget, lacking_seeds(found.runs, wanted)
        )
        return [(bool(found.runs), run) for run in self._each([missing])]

    def _budget_of_claim(self, claim: Claim) -> str:
        """Return one budget for all rows of a claim: the largest below the paper's of any row."""
        paths = {path for part in claim.rows for path in part.paths}
        budgets = {budget_of(self._evidence.spec(path), self._budget) for path in paths}
        return next((b for b in BUDGETS[1:] if b in budgets), PAPER if budgets else self._budget)

    def _is_within_reach(self, row: TableRow) -> bool:
        """Return whether this machine can run the row; if not, note the row in `needing`.

        At the paper's budget this is not checked, and every row counts as within reach.
        """
        if self._budget == PAPER:
            return True
        config = compose(str(row.experiment)).config
        needs, files = config["needs"], config["needed_files"]
        if not needs or (files and all(map(_is_at_hand, files))):
            return True
        if row.path not in self.needing.setdefault(needs, []):
            self.needing[needs].append(str(row.path))
        return False

    def _each(self, missing: Collection[MissingRuns]) -> list[MissingRun]:
        runs = []
        for one in missing:
            composition = compose(one.experiment, one.budget, one.overrides)
            for seed in one.seeds:
                key = one.budget, composition.identity, seed
                if key not in self._runs:
                    seconds = self._seconds(composition.config)
                    self._runs[key] = MissingRun(
                        one.experiment, one.overrides, one.budget, seed, seconds, key in self._stale
                    )
                runs.append(self._runs[key])
        return runs


def _is_at_hand(file: str) -> bool:
    """Return whether a file or folder is in the data folder, compressed or not."""
    return any((data_folder() / f"{file}{ending}").exists() for ending in ("", ".bz2", ".xz"))
