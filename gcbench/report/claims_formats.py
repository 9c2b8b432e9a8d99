"""The answers to the papers' claims as markdown, csv, or on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from gcbench import console
from gcbench.console import TextTable
from gcbench.report.claims_answers import AnsweredClaim
from gcbench.report.claims_missing import Step
from gcbench.report.verdicts import DECIDED, Verdict

TITLE = "Claims of the papers"
PAPERS = {
    "qsgd": "QSGD (Alistarh et al., NeurIPS 2017)",
    "powersgd": "PowerSGD (Vogels et al., NeurIPS 2019)",
    "orq": "ORQ and BinGrad (Xu et al., 2020)",
    "maxnorm": "QSGDMaxNorm (Vineeth S, 2021)",
    "ecqsgd": "ECQ-SGD (Wu et al., ICML 2018)",
}
TO_RUN = "What would decide the others, and its cost"
HEADINGS = ["claim", "the paper says", "answer", "evidence", "caution"]
UNDER = [
    "Rows are compared seed by seed, by the differences between runs of the same seed: a relation "
    "holds, or its opposite does, if the mean difference is larger than the differences' spread "
    "over seeds (their standard deviation). Rows that share one seed take the spread of the "
    "claim's other relations; without any, nothing is above noise. A run that diverged is worse "
    "than any number.",
    "Budgets are not mixed, and the one nearest to the paper's counts: an answer at cpu, "
    "cpu_medium or cpu_long is of a smaller model and fewer epochs. Costs are those of kept runs "
    "of the same table; what needs a machine is an estimate.",
]


class Answered(NamedTuple):
    """A claim with its answers, and what would decide it."""

    claim: AnsweredClaim
    steps: list[Step]


def summary_line(claims: Sequence[Answered]) -> str:
    """Return how many claims are decided, and how many have each verdict."""
    counts = Counter(one.claim.answer.verdict for one in claims)
    decided = sum(counts[verdict] for verdict in DECIDED)
    parts = ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v])
    return f"{len(claims)} claim{'s' * (len(claims) != 1)}, {decided} decided: {parts}."


def legend(claims: Sequence[Answered]) -> list[str]:
    """Return what the verdicts among the answers mean."""
    verdicts = {answer.verdict for one in claims for answer in one.claim.answers}
    return [f"{verdict.value}: {verdict.meaning}." for verdict in Verdict if verdict in verdicts]


def _cells(claim: AnsweredClaim) -> list[str]:
    answered = [answer for answer in claim.answers if answer.verdict is not Verdict.NOT_YET]
    evidence = dict.fromkeys(line for answer in claim.answers for line in answer.evidence)
    return [
        claim.claim.id,
        f"{claim.claim.claim} ({claim.claim.where})",
        "; ".join(answer.text for answer in answered or claim.answers[:1]),
        ". ".join(evidence),
        claim.claim.caution or "-",
    ]


def _tables(claims: Sequence[Answered]) -> list[TextTable]:
    """Return a table a paper."""
    by_paper: dict[str, list[list[str]]] = {}
    for claim, _ in claims:
        by_paper.setdefault(claim.claim.paper, []).append(_cells(claim))
    columns = range(len(HEADINGS))
    return [
        TextTable(HEADINGS, rows, left=columns, groups=range(len(rows)), title=PAPERS[paper])
        for paper, rows in by_paper.items()
    ]


def _to_run(claims: Sequence[Answered], quote: str = "") -> list[str]:
    """Return a line a step: the claim, the cost, and the commands in quotes."""
    return [
        f"{one.claim.claim.id} ({step.cost}): "
        + " ; ".join(f"{quote}{line}{quote}" for line in step.commands)
        for one in claims
        for step in one.steps
    ]


def markdown(claims: Sequence[Answered]) -> str:
    """Return a page: a table a paper, and the commands that would decide what is not decided."""
    lines = [f"# {TITLE}", "", summary_line(claims), ""]
    lines += [f"- {line}" for line in legend(claims)]
    lines += ["", *(f"{line}  " for line in UNDER)]
    for table in _tables(claims):
        lines += ["", f"## {table.title}", "", console.markdown(table)]
    if to_run := _to_run(claims, "`"):
        lines += ["", f"## {TO_RUN}", "", *(f"- {line}" for line in to_run)]
    return "\n".join(lines) + "\n"


def comma_separated(claims: Sequence[Answered]) -> str:
    """Return csv, a line an answer."""
    from pandas import DataFrame

    records = [
        {
            "id": one.claim.claim.id,
            "paper": one.claim.claim.paper,
            "where": one.claim.claim.where,
            "claim": one.claim.claim.claim,
            "expect": one.claim.claim.expect,
            "answer": answer.verdict.value,
            "basis": "; ".join(answer.bases),
            "but_not": one.claim.claim.but,
            "evidence": "; ".join(answer.evidence),
            "caution": one.claim.claim.caution,
            "needs": one.claim.claim.needs,
            "commands": "; ".join(line for step in one.steps for line in step.commands),
            "cost": "; ".join(step.cost for step in one.steps),
        }
        for one in claims
        for answer in one.claim.answers
    ]
    return console.comma_separated(DataFrame(records, dtype=object))


def print_claims(claims: Sequence[Answered]) -> None:
    output = console.console()
    for table in _tables(claims):
        console.print_table(table, output)
    if to_run := _to_run(claims):
        output.print(Text(TO_RUN, style="bold"))
        for line in to_run:  # whole, to be copied
            output.print(Text(f"  {line}"), soft_wrap=True)
    for line in [*legend(claims), *UNDER, summary_line(claims)]:
        output.print(Text(line))


WRITERS: dict[str, Callable[[Sequence[Answered]], str]] = {
    "markdown": markdown,
    "csv": comma_separated,
}


def show(claims: Sequence[Answered], form: str) -> None:
    """Print the answers on the terminal, or in one of the forms of WRITERS."""
    if form == "terminal":
        print_claims(claims)
    else:
        print(WRITERS[form](claims))


def keep(folder: Path, claims: Sequence[Answered]) -> None:
    """Write <folder>/claims.md; runs and studies are kept with their tables."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.md").write_text(markdown(claims), encoding="utf-8")
