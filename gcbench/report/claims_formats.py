"""The answers to the papers' claims as markdown, csv, or on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.text import Text

from gcbench import console
from gcbench.console import TextTable
from gcbench.report.claims import NEEDS
from gcbench.report.claims_answers import Answer, AnsweredClaim, describe_basis
from gcbench.report.claims_relations import Verdict

TITLE = "Claims of the papers"
PAPERS = {
    "qsgd": "QSGD (Alistarh et al., NeurIPS 2017)",
    "powersgd": "PowerSGD (Vogels et al., NeurIPS 2019)",
    "orq": "ORQ and BinGrad (Xu et al., 2020)",
    "maxnorm": "QSGDMaxNorm (Vineeth S, 2021)",
    "ecqsgd": "ECQ-SGD (Wu et al., ICML 2018)",
}
TO_RUN = "What would decide the others (with budget=cpu, an indication on a small machine)"
HEADINGS = ["claim", "the paper says", "answer", "evidence", "caution"]
KINDS = (
    "reproduced",
    "reproduced in part",
    "reproduced within noise",
    "refuted",
    "not decided",
    "not yet",
)
UNDER = [
    "A relation holds, or is violated, if means over seeds differ by more than the spread (the "
    "deviation of a difference between two single seeds); what holds by less is reproduced within "
    "noise, what is violated by less is not decided.",
    "A row of one seed takes the deviation of the claim's other rows; where all have one seed, "
    "nothing is above noise. A row whose runs all diverged counts as worse than any number.",
    "Budgets are not mixed: an answer at budget cpu is of a smaller model and fewer epochs, and an "
    "indication only. It refutes nothing, nor do other data in the place of the paper's: what they "
    "violate is not decided. Tests run with every change to the code.",
]


def summary_line(claims: Sequence[AnsweredClaim]) -> str:
    """Return how many claims have each kind of answer, and on what basis."""
    counts = Counter(_kind(claim.answer) for claim in claims)
    bases = Counter(
        (_kind(claim.answer), basis) for claim in claims for basis in claim.answer.bases
    )
    parts = []
    for kind in filter(counts.__contains__, KINDS):
        by_basis = ", ".join(
            f"{n} {describe_basis(basis)}"
            for (of, basis), n in bases.items()
            if of == kind != "not yet"
        )
        parts.append(f"{counts[kind]} {kind}" + (f" ({by_basis})" if by_basis else ""))
    return f"{len(claims)} claim{'s' * (len(claims) != 1)}: {', '.join(parts)}."


def _kind(answer: Answer) -> str:
    in_part = answer.but and answer.verdict in (Verdict.REPRODUCED, Verdict.NOISE)
    return "reproduced in part" if in_part else answer.verdict.value


def _cells(claim: AnsweredClaim) -> list[str]:
    decided = [answer for answer in claim.answers if answer.verdict is not Verdict.NOT_YET]
    evidence = dict.fromkeys(line for answer in claim.answers for line in answer.evidence)
    return [
        claim.claim.id,
        f"{claim.claim.claim} ({claim.claim.where})",
        "; ".join(answer.text for answer in decided or claim.answers[:1]),
        ". ".join(evidence),
        claim.claim.caution or "-",
    ]


def _tables(claims: Sequence[AnsweredClaim]) -> list[TextTable]:
    """Return a table a paper."""
    by_paper: dict[str, list[list[str]]] = {}
    for claim in claims:
        by_paper.setdefault(claim.claim.paper, []).append(_cells(claim))
    columns = range(len(HEADINGS))
    return [
        TextTable(HEADINGS, rows, left=columns, groups=range(len(rows)), title=PAPERS[paper])
        for paper, rows in by_paper.items()
    ]


def _to_run(claims: Sequence[AnsweredClaim]) -> list[tuple[AnsweredClaim, str]]:
    return [(claim, line) for claim in claims for line in claim.commands]


def markdown(claims: Sequence[AnsweredClaim]) -> str:
    """Return a page: a table a paper, and the commands that would decide what is not decided."""
    lines = [f"# {TITLE}", "", summary_line(claims), "", *(f"{line}  " for line in UNDER)]
    for table in _tables(claims):
        lines += ["", f"## {table.title}", "", console.markdown(table)]
    if to_run := _to_run(claims):
        lines += ["", f"## {TO_RUN}", ""]
        lines += [
            f"- {claim.claim.id} ({NEEDS[claim.claim.needs]}): `{line}`" for claim, line in to_run
        ]
    return "\n".join(lines) + "\n"


def comma_separated(claims: Sequence[AnsweredClaim]) -> str:
    """Return csv, a line an answer."""
    from pandas import DataFrame

    records = [
        {
            "id": claim.claim.id,
            "paper": claim.claim.paper,
            "where": claim.claim.where,
            "claim": claim.claim.claim,
            "expect": claim.claim.expect,
            "answer": answer.verdict.value,
            "basis": "; ".join(answer.bases),
            "but_not": claim.claim.but,
            "evidence": "; ".join(answer.evidence),
            "caution": claim.claim.caution,
            "needs": claim.claim.needs,
            "commands": "; ".join(claim.commands),
        }
        for claim in claims
        for answer in claim.answers
    ]
    return console.comma_separated(DataFrame(records, dtype=object))


def print_claims(claims: Sequence[AnsweredClaim]) -> None:
    output = console.console()
    for table in _tables(claims):
        console.print_table(table, output)
    if to_run := _to_run(claims):
        output.print(Text(TO_RUN, style="bold"))
        for claim, line in to_run:  # whole, to be copied
            output.print(Text(f"  {claim.claim.id}: {line}"), soft_wrap=True)
    for line in [*UNDER, summary_line(claims)]:
        output.print(Text(line))


WRITERS: dict[str, Callable[[Sequence[AnsweredClaim]], str]] = {
    "markdown": markdown,
    "csv": comma_separated,
}


def show(claims: Sequence[AnsweredClaim], form: str) -> None:
    """Print the answers on the terminal, or in one of the forms of WRITERS."""
    if form == "terminal":
        print_claims(claims)
    else:
        print(WRITERS[form](claims))


def keep(folder: Path, claims: Sequence[AnsweredClaim]) -> None:
    """Write <folder>/claims.md; runs and studies are kept with their tables."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.md").write_text(markdown(claims), encoding="utf-8")
