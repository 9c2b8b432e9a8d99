"""The evidence for claims: runs and studies, and the numbers of their rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from gcbench.core.errors import name_first
from gcbench.papers.claims.kept_tests import find_tests
from gcbench.papers.claims.relations import BUDGETS, EARLY_LOSS, LEARNING_RATE, STEPS, RowRelations
from gcbench.papers.claims.verdicts import Judged, Value, Verdict
from gcbench.papers.tables.configs import compose_row
from gcbench.papers.tables.measured import KeptStudy, StudyResult, find_link_table, find_study
from gcbench.papers.tables.rates import Rate, describe_sources
from gcbench.papers.tables.rows import Row, find_row
from gcbench.papers.tables.tables import Column, TableRow, read_table, table_names
from gcbench.runner.config.budget import PAPER
from gcbench.runner.records.store import RecordedRun
from gcbench.runner.report.document import Heading, Summary, format_number, format_summary
from gcbench.runner.report.measures import LOWER, SCORES, is_infinite, measure

RATES = (0.25, 1, 4)  # multiples of a row's learning rate that a claim on the best rate compares
EXACT = {
    "ratio",
    "received_ratio",
    "analytic_ratio",
    "data_mib_per_epoch",
    "total_bits",
    "parameters",
    LEARNING_RATE,
}  # measures that are the same for all seeds


def budget_of(row: TableRow, asked: str) -> str:
    """Return the paper's budget, or else the smallest, with the row's configuration at `asked`."""
    identity = compose_row(row, asked).identity
    smaller = [PAPER, *reversed(BUDGETS[BUDGETS.index(asked) :])] if asked in BUDGETS else []
    return next((b for b in smaller if compose_row(row, b).identity == identity), asked)


class Measured(NamedTuple):
    """The measured value of one row of a claim."""

    value: Value | None
    text: str  # such as 94.3 [94.1, 94.5] (n=3), or why there is no value


class Evidence:
    """Runs and studies, read once for all claims."""

    def __init__(
        self,
        runs: Sequence[RecordedRun],
        folders: Sequence[str | Path],
        overrides: tuple[str, ...] = (),
    ) -> None:
        self.by_budget: dict[str, list[RecordedRun]] = {}
        for run in runs:
            self.by_budget.setdefault(run.budget, []).append(run)
        self.runs, self._folders = runs, folders
        self.overrides = overrides  # added to every experiment
        self._rows: dict[tuple[str, str, str], Row] = {}
        self.studies: dict[str, KeptStudy | None] = {}
        self.tests = find_tests(folders)
        tables = [read_table(name) for name in table_names()]
        self._tables = {table.name: {row.path for row in table.rows} for table in tables}
        self._specs = {row.path: row for table in tables for row in table.rows}

    def spec(self, path: str) -> TableRow:
        """Return the row that claims call <paper>/<table>/<name>, else one for this experiment."""
        return self._specs.get(path) or TableRow(path, experiment=path)

    def gains_steps(self, path: str) -> bool:
        """Return whether the row has more steps at budget=cpu_steps than at the smallest budget."""
        spec = self.spec(path)
        return spec.experiment is not None and budget_of(spec, STEPS) == STEPS

    def is_dense(self, path: str) -> bool:
        """Return whether the row has no compression."""
        spec = self.spec(path)
        return spec.experiment is not None and compose_row(spec).choices["compressor"] == "none"

    def row(self, path: str, score: str, budget: str) -> Row:
        """Return a row with its runs; without more steps at budget=cpu_steps, at the smallest."""
        if budget == STEPS and not self.gains_steps(path):
            budget = BUDGETS[-1]
        key = path, score, budget
        if key not in self._rows:
            chooser = Column(score, score, measure=score)
            runs = self.by_budget.get(budget, [])
            self._rows[key] = find_row(self.spec(path), chooser, runs, budget, self.overrides)
        return self._rows[key]

    def study(self, name: str) -> StudyResult | None:
        """Return a study, or a table of scripts/turns like links/resnet18-1gbit-2, or None."""
        if name not in self.studies:
            find = find_link_table if name.startswith("links/") else find_study
            self.studies[name] = find(name, self._folders)
        kept = self.studies[name]
        return kept.study if kept else None

    def passed(self, tests: Sequence[str]) -> bool:
        """Return whether all of the tests are recorded as passed."""
        outcomes = self.tests.record.outcomes if self.tests else {}
        return all(outcomes.get(test) == "passed" for test in tests)

    def rows_beside(self, path: str) -> list[str]:
        """Return the paths of all rows of a row's table, the row's own first."""
        folder = path.rpartition("/")[0]
        tables = [folder] if folder in self._tables else []
        tables = tables or [name for name, paths in self._tables.items() if path in paths]
        others = {other for table in tables for other in self._tables[table] if other}
        return [path, *sorted(others - {path})]

    def measure_tables(self, part: RowRelations, budget: str, name: str) -> list[Measured]:
        """Return a measure of all rows of the tables that the part's rows are in, each run once.

        The best rates of a sweep are known of the part's own rows only.
        """
        paths = part.paths
        if name != LEARNING_RATE:
            paths = list(dict.fromkeys(p for path in paths for p in self.rows_beside(path)))
        rows = [self.row(path, part.score, budget) for path in paths]
        distinct = {frozenset(row.runs): row for row in rows if row.runs}
        return [measure_row(row, name) for row in distinct.values()]

    def tables(self, paths: Sequence[str]) -> list[str]:
        """Return the tables that contain all of these rows, or else those named in their paths."""
        wanted = set(paths)
        whole = [name for name, rows in self._tables.items() if wanted <= rows]
        return whole or sorted({path.rpartition("/")[0] for path in paths} & set(self._tables))


def measure_study(row: Mapping[str, Any], column: str, each: str = "seed") -> Measured:
    """Return the measured value of a study's cell, which is a number or a list of one per seed.

    Seconds on links are a median, and beside it may lie those of `all_` steps.
    """
    value = row.get(f"all_{column}", row.get(column))
    if isinstance(value, list):
        by_seed = {seed: float(v) for seed, v in enumerate(value) if isinstance(v, (int, float))}
        return Measured(Value(by_seed, each=each), _several(by_seed))
    if isinstance(value, (int, float)):
        return Measured(Value(exact=float(value), each=each), format_number(float(value), None))
    return Measured(None, "no number")


@cache
def measure_row(row: Row, name: str) -> Measured:
    """Return the value of the named measure for a row.

    For a score, a seed that diverged or whose score is not finite counts as infinitely bad.
    """
    if name == LEARNING_RATE:
        return _best_rate(row)
    if name == EARLY_LOSS:
        values = {run.seed: loss for run in row.done if (loss := _early_loss(run)) is not None}
    else:
        values = row.values_by_seed(name)
    diverged = [run.seed for run in row.unfinished if run.status == "diverged"]
    infinite = [run.seed for run in row.done if is_infinite(name, run.result)]
    statuses = ", ".join(
        [f"seed {run.seed} {run.status}" for run in row.unfinished]
        + [f"seed {seed} not finite" for seed in infinite]
    )
    about = "; ".join(filter(None, [statuses, describe_sources(row.borrowed)]))
    text = f"{_several(values)}{f' ({about})' if about else ''}" if values else ""
    if name in EXACT and values:
        return Measured(Value(exact=fmean(values.values())), text)
    bad = [*diverged, *infinite] if name in SCORES else []
    by_seed = values | dict.fromkeys(bad, _worst(name))
    if by_seed:
        how = "diverged" if diverged else "not finite"
        return Measured(Value(by_seed), text or f"{how} (n={len(by_seed)})")
    return Measured(None, statuses or ("no such number" if row.runs else "no run"))


def _early_loss(run: RecordedRun) -> float | None:
    """Return the mean of the training losses logged in the first tenth of the steps."""
    last = (run.result.steps or 0) / 10
    lines = (line for line in run.read_metrics() if line["event"] == "train")
    losses = [line["loss"] for line in lines if line["step"] <= last]
    return fmean(losses) if losses else None


def _best_rate(row: Row) -> Measured:
    """Return the best learning rate for each seed that ran with all rates."""
    rates = row.grid.rates if row.grid else []
    if row.grid is None or len(rates) < len(RATES):
        return Measured(None, f"{len(rates)} rates of {len(RATES)}")
    by_seed = {}
    for seed in {run.seed for rate in rates for run in rate.runs}:
        scores = {rate.lr: _score_of(rate, seed, row.grid.measure) for rate in rates}
        known = [score for score in scores.values() if score is not None]
        if len(known) == len(scores) and any(map(math.isfinite, known)):
            best = min if row.grid.measure in LOWER else max
            by_seed[seed] = best(scores, key=lambda lr: scores[lr] or 0.0)
    if not by_seed:
        return Measured(None, "no seed has run with all rates")
    return Measured(Value(by_seed), f"{_several(by_seed)}, the best of {len(rates)}")


def _score_of(rate: Rate, seed: int, name: str) -> float | None:
    """Return the score of the run with this rate and seed; None if it has not ended."""
    run = next((run for run in rate.runs if run.seed == seed), None)
    if run is None:
        return None
    bad = run.status == "diverged" or is_infinite(name, run.result)
    return _worst(name) if bad else measure(name, run.result) if run.done else None


def _worst(name: str) -> float:
    """Return the score of a run that diverged, which is worse than any number."""
    return math.inf if name in LOWER else -math.inf


def _several(by_seed: Mapping[int, float]) -> str:
    return format_summary(Summary.of(list(by_seed.values())), Heading("", ""))


def describe_stand_ins(rows: Iterable[Row]) -> str:
    names = sorted({row.stand_in for row in rows if row.runs and row.stand_in})
    return f" ({' and '.join(names)} in place of the paper's)" if names else ""


def describe(title: str, measured: Mapping[str, Measured], judged: Sequence[Judged]) -> str:
    """Return a text with the numbers, and the relations that do not hold."""
    known = ", ".join(f"{name} {m.text}" for name, m in measured.items() if m.value)
    missing: dict[str, list[str]] = {}
    for name, m in measured.items():
        if m.value is None:
            missing.setdefault(m.text, []).append(name)
    counts = Counter(one.verdict for one in judged)
    asked = len(judged) - counts[Verdict.NOT_YET]
    facts = [known, *(f"{why}: {name_first(names, 2)}" for why, names in missing.items())]
    facts += [f"{counts[Verdict.REPRODUCED]} of {asked} relations hold"] if asked else []
    by_loss = {
        f"{verdict.value} by the test loss": [
            one for one in judged if one.decided_by_loss and one.verdict is verdict
        ]
        for verdict in (Verdict.REPRODUCED, Verdict.CONTRARY)
    }
    by_accuracy = {
        verdict.value: [
            one
            for one in judged
            if one.verdict is verdict and not one.decided_by_loss and not one.margin.recovers
        ]
        for verdict in (Verdict.CONTRARY, Verdict.NOT_DECIDED, Verdict.WITHIN_NOISE)
    }
    against = [one for one in judged if one.is_disputed]
    lists = {**by_loss, **by_accuracy, "the test loss says the opposite": against}
    facts += [
        f"{what}: {', '.join(one.text for one in relations)}"
        for what, relations in lists.items()
        if relations
    ]
    of_recovery = [one for one in judged if one.margin.recovers and one.margin.known]
    facts += [one.recovery_text for one in of_recovery if not one.so_far]
    if waiting := [one.recovery_text for one in of_recovery if one.so_far]:
        facts.append(f"about recovery, which budget {STEPS} decides: {', '.join(waiting)}")
    return f"{title}: {'; '.join(fact for fact in facts if fact)}"
