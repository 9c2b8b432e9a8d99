"""Which relations are about recovery, and the runs that tell how far rows end behind.

They say that a row recovers what training without compression reaches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gcbench.papers.claims.claim import Claim
from gcbench.papers.claims.evidence import Evidence, Measured, measure_row
from gcbench.papers.claims.recovery import Length, Scores, find_recovery, fit_law, short
from gcbench.papers.claims.relations import BUDGETS, STEPS, Relation, RowRelations
from gcbench.papers.claims.verdicts import Margin
from gcbench.papers.tables.configs import compose_row
from gcbench.papers.tables.rows import Row
from gcbench.runner.differences import flat_differences
from gcbench.runner.report.measures import LOWER, measure
from gcbench.runner.report.significance import Noise

LENGTH = {"trainer.epochs", "trainer.max_steps", "schedule.warmup_epochs"}  # of training


def _dense_of(part: RowRelations, relation: Relation, evidence: Evidence) -> str | None:
    """Return the row without compression, if the relation says that another recovers its score."""
    if part.score != part.measure or not relation.recovers:
        return None
    return next(filter(evidence.is_dense, relation.names), None)


def _waits(relation: Relation, budget: str, evidence: Evidence) -> bool:
    """Return whether its rows have fewer steps at this budget than in the paper."""
    late = BUDGETS.index(budget) > BUDGETS.index(STEPS)
    return late and any(map(evidence.gains_steps, relation.names))


def is_waiting(part: RowRelations, budget: str, evidence: Evidence) -> bool:
    """Return whether a relation about recovery is judged only after the paper's steps."""
    return any(
        _dense_of(part, relation, evidence) and _waits(relation, budget, evidence)
        for relation in part.relations
    )


def with_recovery(
    part: RowRelations,
    rows: Mapping[str, Row],
    budget: str,
    evidence: Evidence,
    margins: Sequence[Margin],
    of_tables: Iterable[Measured],
) -> list[Margin]:
    """Return the margins, those about recovery with how far the row ends behind."""
    scores = _scores(rows, part.measure, of_tables)
    losses = None
    if part.measure in ("accuracy", "error_rate"):
        losses = _scores(rows, "loss", evidence.measure_tables(part, budget, "loss"))
    found = []
    for margin in margins:
        relation = margin.relation
        dense = _dense_of(part, relation, evidence)
        recovery = None
        if dense and len(relation.names) == 2:
            recovery = find_recovery(relation, dense, scores, part.measure in LOWER, losses)
        waits = dense is not None and _waits(relation, budget, evidence)
        margin = margin._replace(waits=waits, recovers=bool(dense), recovery=recovery)
        if recovery:  # the tolerance is a number, so that its interval and its test are one
            margin = margin._replace(mean=recovery.margin, error=recovery.gap.error)
        found.append(margin)
    return found


def _scores(rows: Mapping[str, Row], name: str, of_tables: Iterable[Measured]) -> Scores:
    values = {path: value for path, row in rows.items() if (value := measure_row(row, name).value)}
    return Scores(
        {path: value.by_seed for path, value in values.items()},
        Noise([measured.value.by_seed for measured in of_tables if measured.value]),
    )


def laws_of(claim: Claim, evidence: Evidence) -> Iterator[str]:
    """Yield how gaps to training without compression fall with the number of steps."""
    seen = set()
    for part in claim.rows:
        for relation in part.relations:
            dense = _dense_of(part, relation, evidence)
            others = {*relation.names} - {dense}
            if dense is None or len(others) != 1 or (*others, dense) in seen:
                continue
            (row,) = others
            seen.add((row, dense))
            lengths = lengths_of(row, dense, part.measure, evidence)
            if law := fit_law(lengths, part.measure in LOWER):
                yield " behind ".join(short(row, dense)) + f": {law.text}"


def lengths_of(path: str, dense: str, name: str, evidence: Evidence) -> list[Length]:
    """Return the scores of a row and of one without compression, at all lengths of training.

    Runs are as these rows at a budget, but for their epochs.
    """
    found = []
    for budget in filter(evidence.by_budget.__contains__, () if evidence.overrides else BUDGETS):
        rows, others = (_scores_by_steps(row, name, budget, evidence) for row in (path, dense))
        model = compose_row(evidence.spec(path), budget).config["model"]
        found += [
            Length(json.dumps(model, sort_keys=True), steps, rows[steps], others[steps])
            for steps in sorted(rows.keys() & others.keys())
        ]
    return found


def _scores_by_steps(
    path: str, name: str, budget: str, evidence: Evidence
) -> dict[int, dict[int, float]]:
    composed = compose_row(evidence.spec(path), budget)
    found: dict[int, dict[int, float]] = {}
    for run in evidence.by_budget[budget]:
        if not run.done or any(composed.choices[k] != v for k, v in run.choices.items()):
            continue
        value = measure(name, run.result)
        differing = flat_differences(composed.flat, run.flat).keys()
        if value is not None and math.isfinite(value) and differing <= LENGTH:
            found.setdefault(run.result.steps or 0, {})[run.seed] = value
    return found
