"""Whether each claim holds: from tests, studies and the runs of one budget at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from gcbench.report.claims import BUDGETS, LEARNING_RATE, Claim, Rows, StudyRows
from gcbench.report.claims_relations import Judged, Value, Verdict, judge, worst
from gcbench.report.commands import command
from gcbench.report.configs import PAPER, composed
from gcbench.report.document import Heading, Summary, summary
from gcbench.report.load import Run
from gcbench.report.measures import LOWER, SCORES, measure
from gcbench.report.rows import RATE, Row, grouped
from gcbench.report.study import Study, find_study
from gcbench.report.tables import Column, Table, TableRow, read_table, table_names

SEEDS = (1, 2, 3)  # with which a missing row is run
RATES = (0.25, 1, 4)  # of a row's own, where the best is asked for
EXACT = {"ratio", "analytic_ratio", "data_mib_per_epoch", "total_bits", "parameters", LEARNING_RATE}  # whatever the seed


class Measured(NamedTuple):
    """One row of a claim."""

    value: Value | None
    text: str  # 94.3 [94.1, 94.5] (n=3); or why there is no value
    n: int = 0


class Wanted(NamedTuple):
    """A row that should run."""

    experiment: str
    rates: bool  # with several learning rates


class Part(NamedTuple):
    """What one measure of one budget, one study or the tests say."""

    verdict: Verdict
    basis: str  # tests | study | budget paper | budget cpu | nothing
    evidence: str
    wanted: tuple[Wanted, ...] = ()
    command: str | None = None  # of a study that has not run


class Answer(NamedTuple):
    verdict: Verdict
    bases: tuple[str, ...]
    evidence: list[str]
    but: str | None = None

    @property
    def text(self) -> str:
        if self.verdict is Verdict.NOT_YET:
            return "not yet"
        in_part = f" in part (but not {self.but})" if self.but and self.verdict is not Verdict.REFUTED else ""
        told = self.verdict.value.replace("reproduced", f"reproduced{in_part}")
        return f"{told}, {' and '.join(by(basis) for basis in self.bases)}"


class Answered(NamedTuple):
    claim: Claim
    answers: list[Answer]  # one a budget that has any; the first one counts
    commands: list[str]

    @property
    def answer(self) -> Answer:
        return self.answers[0]


def by(basis: str) -> str:
    return {"tests": "by tests", "study": "by a study", "budget cpu": "at budget cpu (an indication)"}.get(basis, f"at {basis}")


class Evidence:
    """Runs and studies, read once for all claims."""

    def __init__(self, runs: Sequence[Run], folders: Sequence[str | Path], words: tuple[str, ...] = ()) -> None:
        self._runs, self._folders = runs, folders
        self.words = words  # typed beside every experiment
        self._rows: dict[tuple[str, str, str], Row] = {}
        self.studies: dict[str, tuple[Path, Study] | None] = {}
        self._tables = {name: set(read_table(name).experiments) for name in table_names()}

    def row(self, experiment: str, score: str, budget: str) -> Row:
        key = experiment, score, budget
        if key not in self._rows:
            paper = experiment.partition("/")[0]
            runs = [run for run in self._runs if (run.experiment or "").partition("/")[0] == paper]
            column, row = Column(score, score, measure=score), TableRow(experiment, experiment=experiment)
            self._rows[key] = grouped(Table("", "", "", [column], [row]), runs, budget, self.words)[0]
        return self._rows[key]

    def study(self, name: str) -> Study | None:
        if name not in self.studies:
            self.studies[name] = find_study(name, self._folders)
        found = self.studies[name]
        return found[1] if found else None

    def tables(self, experiments: Sequence[str]) -> list[str]:
        """In which all of these stand; else those that they stand in."""
        wanted = set(experiments)
        whole = [name for name, rows in self._tables.items() if wanted <= rows]
        return whole or sorted({e.rpartition("/")[0] for e in experiments} & set(self._tables))


def answered(claim: Claim, evidence: Evidence) -> Answered:
    fixed = [*_tests(claim), *(_study(part, evidence) for part in claim.check.study), *_open(claim)]
    by_budget = {budget: list(_at(budget, claim, evidence)) for budget in BUDGETS}
    answers = [
        _answer(claim, [*fixed, *parts], _not_asked(claim, budget))
        for budget, parts in by_budget.items()
        if any(_has_numbers(part) for part in parts)
    ]
    answers = sorted(answers, key=lambda answer: answer.verdict is Verdict.NOT_YET)  # stays in the order of the budgets
    answers = answers or [_answer(claim, [*fixed, *by_budget[PAPER]])]
    undecided = answers[0].verdict in (Verdict.NOT_YET, Verdict.NOT_DECIDED)
    return Answered(claim, answers, list(_commands([*by_budget[PAPER], *fixed], evidence.words)) if undecided else [])


def _has_numbers(part: Part) -> bool:
    return part.verdict is not Verdict.NOT_YET or "(n=" in part.evidence


def _not_asked(claim: Claim, budget: str) -> list[str]:
    names = dict.fromkeys(part.measure.replace("_", " ") for part in claim.check.rows if budget not in part.budgets)
    return [f"{name} is not asked at budget {budget}" for name in names]


def _answer(claim: Claim, parts: Sequence[Part], not_asked: Sequence[str] = ()) -> Answer:
    verdict = worst([part.verdict for part in parts])
    bases = tuple(dict.fromkeys(part.basis for part in parts if part.verdict is not Verdict.NOT_YET))
    return Answer(verdict, bases, [*(part.evidence for part in parts), *not_asked], claim.but)


def _tests(claim: Claim) -> Iterator[Part]:
    if claim.check.tests:
        yield Part(Verdict.REPRODUCED, "tests", f"held by tests/{', '.join(claim.check.tests)}")


def _open(claim: Claim) -> Iterator[Part]:
    if claim.check.open:
        yield Part(Verdict.NOT_YET, "nothing", claim.check.open)


def _study(part: StudyRows, evidence: Evidence) -> Part:
    study = evidence.study(part.name)
    rows: Mapping[str, Any] = {row["row"]: row for row in study["rows"]} if study else {}
    names = dict.fromkeys(name for relation in part.relations for name in relation.names)
    measured = {name: _of_study(rows.get(name, {}).get(part.column)) for name in names}
    judged = [judge(relation, _values(measured)) for relation in part.relations]
    told = _told(f"study {part.name}, {part.column.replace('_', ' ')}", measured, judged)
    verdict = worst([one.verdict for one in judged])
    return Part(verdict, "study", told, command=f"gcbench-study {part.name}" if verdict is Verdict.NOT_YET else None)


def _of_study(value: Any) -> Measured:
    """A number, or one for every seed."""
    numbers = [float(v) for v in (value if isinstance(value, list) else [value]) if isinstance(v, (int, float))]
    if not numbers:
        return Measured(None, "no number")
    found = Summary.of(numbers)
    return Measured(Value(found.mean, found.deviation or 0.0), summary(found, Heading("", "")), found.n)


def _at(budget: str, claim: Claim, evidence: Evidence) -> Iterator[Part]:
    for part in claim.check.rows:
        if budget in part.budgets:
            yield _rows(part, budget, evidence)


def _rows(part: Rows, budget: str, evidence: Evidence) -> Part:
    score = part.measure if part.measure in SCORES else "accuracy"
    rows = {experiment: evidence.row(experiment, score, budget) for experiment in part.experiments}
    measured = _pooled({experiment: _measured(row, part.measure) for experiment, row in rows.items()})
    values = _values(measured)
    judged = []
    for folder, relation in part.relations:
        own = {name: values[f"{folder}/{name}"] for name in relation.names if f"{folder}/{name}" in values}
        judged.append(judge(relation, own))
    verdict = worst([one.verdict for one in judged])
    labels = _labels(part, measured)
    beside = f" with {' '.join(evidence.words)}" if evidence.words else ""
    title = f"{part.measure.replace('_', ' ')} at budget {budget}{beside}{_stand_ins(rows.values())}"
    told = _told(title, {labels[experiment]: found for experiment, found in measured.items()}, judged)
    if tables := evidence.tables(part.experiments):
        told += f"; see {', '.join(tables)}"
    return Part(verdict, f"budget {budget}", told, _wanted(part, verdict, measured))


def _measured(row: Row, name: str) -> Measured:
    if name == LEARNING_RATE:
        return _best_rate(row)
    found = [value for run in row.done if (value := measure(name, run.result)) is not None]
    diverged = [run for run in row.unfinished if run.status == "diverged"]
    statuses = ", ".join(f"seed {run.seed} {run.status}" for run in row.unfinished)
    if found:
        deviation = 0.0 if name in EXACT else math.inf if diverged else Summary.of(found).deviation
        text = f"{summary(Summary.of(found), Heading('', ''))}{f' ({statuses})' if statuses else ''}"
        return Measured(Value(fmean(found), deviation), text, len(found))
    if diverged and name in SCORES:
        return Measured(Value(math.inf if name in LOWER else -math.inf, 0.0), f"diverged (n={len(diverged)})", len(diverged))
    return Measured(None, statuses or ("no such number" if row.runs else "no run"))


def _best_rate(row: Row) -> Measured:
    rates = row.grid.rates if row.grid else []
    if row.grid is None or row.grid.chosen is None or len(rates) < len(RATES):
        return Measured(None, f"{len(rates)} rates of {len(RATES)}")
    return Measured(Value(row.grid.chosen, 0.0), f"{row.grid.chosen:g}, the best of {len(rates)} (n={len(row.runs)})", 3)


def _pooled(measured: dict[str, Measured]) -> dict[str, Measured]:
    """A row of one seed takes the deviation of the rows with more."""
    several = [m.value.deviation for m in measured.values() if m.n > 1 and m.value and m.value.deviation is not None]
    known = [deviation for deviation in several if math.isfinite(deviation)]
    if not known:
        return measured
    pooled = math.sqrt(fmean(deviation**2 for deviation in known))
    return {
        name: m._replace(value=m.value._replace(deviation=pooled)) if m.value and m.value.deviation is None else m
        for name, m in measured.items()
    }


def _values(measured: Mapping[str, Measured]) -> dict[str, Value]:
    return {name: found.value for name, found in measured.items() if found.value is not None}


def _labels(part: Rows, experiments: Iterable[str]) -> dict[str, str]:
    """Without what they share."""
    shared = len(f"{part.of[0]}/") if len(part.of) == 1 else len(part.of[0].partition("/")[0]) + 1
    return {experiment: experiment[shared:] for experiment in experiments}


def _stand_ins(rows: Iterable[Row]) -> str:
    names = sorted({row.stand_in for row in rows if row.runs and row.stand_in})
    return f" ({' and '.join(names)} in place of the paper's)" if names else ""


def _told(title: str, measured: Mapping[str, Measured], judged: Sequence[Judged]) -> str:
    there = ", ".join(f"{name} {found.text}" for name, found in measured.items() if found.value)
    missing: dict[str, list[str]] = {}
    for name, found in measured.items():
        if found.value is None:
            missing.setdefault(found.text, []).append(name)
    counts = Counter(one.verdict for one in judged)
    asked = len(judged) - counts[Verdict.NOT_YET]
    holding = counts[Verdict.REPRODUCED] + counts[Verdict.NOISE]
    facts = [there, *(f"{why}: {', '.join(names)}" for why, names in missing.items())]
    facts.append(f"{holding} of {asked} relations hold" if asked else "nothing to compare")
    for verdict, word in ((Verdict.REFUTED, "violated"), (Verdict.NOT_DECIDED, "not decided"), (Verdict.NOISE, "within noise")):
        if counts[verdict]:
            facts.append(f"{word}: {', '.join(one.text for one in judged if one.verdict is verdict)}")
    return f"{title}: {'; '.join(fact for fact in facts if fact)}"


def _wanted(part: Rows, verdict: Verdict, measured: Mapping[str, Measured]) -> tuple[Wanted, ...]:
    """Rows without a value; those of few seeds, too, where these decide nothing."""
    few = len(SEEDS) if verdict is Verdict.NOT_DECIDED else 1
    rates = part.measure == LEARNING_RATE
    return tuple(Wanted(experiment, rates) for experiment, found in measured.items() if found.n < few)


def _commands(parts: Sequence[Part], typed: tuple[str, ...]) -> Iterator[str]:
    """At the paper's budget, one a folder."""
    by_folder: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
    for wanted in (wanted for part in parts for wanted in part.wanted):
        words = typed
        if wanted.rates:
            own = composed(wanted.experiment).config["optimizer"]["lr"]
            words += (f"{RATE}={','.join(f'{own * factor:g}' for factor in RATES)}",)
        by_folder.setdefault((wanted.experiment.rpartition("/")[0], words), {})[wanted.experiment] = None
    for (_, words), experiments in by_folder.items():
        yield command(list(experiments), PAPER, SEEDS, words)
    yield from dict.fromkeys(part.command for part in parts if part.command)
