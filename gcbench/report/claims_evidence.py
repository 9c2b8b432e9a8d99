"""The evidence for claims: runs and studies, and the numbers of their rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from gcbench.records.store import RecordedRun
from gcbench.report.borrowed import describe_sources
from gcbench.report.claims import LEARNING_RATE
from gcbench.report.claims_relations import Judged, Value, Verdict
from gcbench.report.document import Heading, Summary, number, summary
from gcbench.report.measures import LOWER, SCORES
from gcbench.report.rows import Row, group_runs
from gcbench.report.study import Study, find_study
from gcbench.report.tables import Column, Table, TableRow, read_table, table_names

RATES = (0.25, 1, 4)  # of a row's own, where the best is asked for
EXACT = {
    "ratio",
    "analytic_ratio",
    "data_mib_per_epoch",
    "total_bits",
    "parameters",
    LEARNING_RATE,
}  # the same for all seeds


class Measured(NamedTuple):
    """The measured value of one row of a claim."""

    value: Value | None
    text: str  # 94.3 [94.1, 94.5] (n=3); or why there is no value
    n: int = 0


class Evidence:
    """Runs and studies, read once for all claims."""

    def __init__(
        self,
        runs: Sequence[RecordedRun],
        folders: Sequence[str | Path],
        words: tuple[str, ...] = (),
    ) -> None:
        self._runs, self._folders = runs, folders
        self.words = words  # typed beside every experiment
        self._rows: dict[tuple[str, str, str], Row] = {}
        self.studies: dict[str, tuple[Path, Study] | None] = {}
        tables = [read_table(name) for name in table_names()]
        self._tables = {table.name: {row.path for row in table.rows} for table in tables}
        self._specs = {row.path: row for table in tables for row in table.rows}

    def spec(self, path: str) -> TableRow:
        """Return the row that a claim calls <paper>/<table>/<name>."""
        return self._specs.get(path) or TableRow(path, experiment=path)

    def row(self, path: str, score: str, budget: str) -> Row:
        key = path, score, budget
        if key not in self._rows:
            column = Column(score, score, measure=score)
            self._rows[key] = group_runs(
                Table("", "", "", [column], [self.spec(path)]), self._runs, budget, self.words
            )[0]
        return self._rows[key]

    def study(self, name: str) -> Study | None:
        if name not in self.studies:
            self.studies[name] = find_study(name, self._folders)
        stored = self.studies[name]
        return stored[1] if stored else None

    def tables(self, paths: Sequence[str]) -> list[str]:
        """Return those in which all of these rows stand; else those that they stand in."""
        wanted = set(paths)
        whole = [name for name, rows in self._tables.items() if wanted <= rows]
        return whole or sorted({path.rpartition("/")[0] for path in paths} & set(self._tables))


def measure_study(value: Any) -> Measured:
    """Return the measured value of a study's cell: a number, or one for every seed."""
    numbers = [
        float(v)
        for v in (value if isinstance(value, list) else [value])
        if isinstance(v, (int, float))
    ]
    if not numbers:
        return Measured(None, "no number")
    of_seeds = Summary.of(numbers)
    text = number(of_seeds.mean, None) if of_seeds.n == 1 else summary(of_seeds, Heading("", ""))
    return Measured(Value(of_seeds.mean, of_seeds.deviation or 0.0), text, of_seeds.n)


def measure_row(row: Row, name: str) -> Measured:
    """Return the measured value of a row by the name of a measure."""
    if name == LEARNING_RATE:
        return _best_rate(row)
    values = row.values(name)
    diverged = [run for run in row.unfinished if run.status == "diverged"]
    statuses = ", ".join(f"seed {run.seed} {run.status}" for run in row.unfinished)
    about = "; ".join(filter(None, [statuses, describe_sources(row.borrowed)]))
    if values:
        of_seeds = Summary.of(values)
        deviation = 0.0 if name in EXACT else math.inf if diverged else of_seeds.deviation
        text = f"{summary(of_seeds, Heading('', ''))}{f' ({about})' if about else ''}"
        return Measured(Value(fmean(values), deviation), text, len(values))
    if diverged and name in SCORES:
        return Measured(
            Value(math.inf if name in LOWER else -math.inf, 0.0),
            f"diverged (n={len(diverged)})",
            len(diverged),
        )
    return Measured(None, statuses or ("no such number" if row.runs else "no run"))


def _best_rate(row: Row) -> Measured:
    rates = row.grid.rates if row.grid else []
    if row.grid is None or row.grid.chosen is None or len(rates) < len(RATES):
        return Measured(None, f"{len(rates)} rates of {len(RATES)}")
    return Measured(
        Value(row.grid.chosen, 0.0),
        f"{row.grid.chosen:g}, the best of {len(rates)} (n={len(row.runs)})",
        3,
    )


def pool_deviations(measured: dict[str, Measured]) -> dict[str, Measured]:
    """Return the values, with the deviation of several seeds for rows of one seed."""
    several = [
        m.value.deviation
        for m in measured.values()
        if m.n > 1 and m.value and m.value.deviation is not None
    ]
    known = [deviation for deviation in several if math.isfinite(deviation)]
    if not known:
        return measured
    together = math.sqrt(fmean(deviation**2 for deviation in known))
    return {
        name: m._replace(value=m.value._replace(deviation=together))
        if m.value and m.value.deviation is None
        else m
        for name, m in measured.items()
    }


def values_of(measured: Mapping[str, Measured]) -> dict[str, Value]:
    return {name: m.value for name, m in measured.items() if m.value is not None}


def describe_stand_ins(rows: Iterable[Row]) -> str:
    names = sorted({row.stand_in for row in rows if row.runs and row.stand_in})
    return f" ({' and '.join(names)} in place of the paper's)" if names else ""


def describe(title: str, measured: Mapping[str, Measured], judged: Sequence[Judged]) -> str:
    known = ", ".join(f"{name} {m.text}" for name, m in measured.items() if m.value)
    missing: dict[str, list[str]] = {}
    for name, m in measured.items():
        if m.value is None:
            missing.setdefault(m.text, []).append(name)
    counts = Counter(one.verdict for one in judged)
    asked = len(judged) - counts[Verdict.NOT_YET]
    holding = counts[Verdict.REPRODUCED] + counts[Verdict.NOISE]
    facts = [known, *(f"{why}: {_few(names)}" for why, names in missing.items())]
    facts += [f"{holding} of {asked} relations hold"] if asked else []
    for verdict, word in (
        (Verdict.REFUTED, "violated"),
        (Verdict.NOT_DECIDED, "not decided"),
        (Verdict.NOISE, "within noise"),
    ):
        if counts[verdict]:
            facts.append(
                f"{word}: {', '.join(one.text for one in judged if one.verdict is verdict)}"
            )
    return f"{title}: {'; '.join(fact for fact in facts if fact)}"


def _few(names: Sequence[str]) -> str:
    return (
        ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
    )
