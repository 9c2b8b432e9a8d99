"""The answers as markdown, csv, or on the terminal."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table as RichTable

from gcbench.records import console
from gcbench.report.claims import NEEDS
from gcbench.report.claims_answers import Answer, Answered, by
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
WIDTH = 180  # where no terminal has one
HEADINGS = ["claim", "the paper says", "answer", "evidence", "caution"]
UNDER = [
    "A relation holds, or is violated, if means over seeds differ by more than the spread (the deviation of a difference "
    "between two single seeds); what holds by less is reproduced within noise, what is violated by less is not decided.",
    "A row of one seed takes the deviation of the claim's other rows; where all have one seed, nothing is above noise. A row "
    "whose runs all diverged counts as worse than any number.",
    "Budgets are not mixed: an answer at budget cpu is of a smaller model and fewer epochs, and an indication only. It refutes "
    "nothing, nor do other data in the place of the paper's: what they violate is not decided. Tests run with every change to "
    "the code.",
]


def summary_line(found: Sequence[Answered]) -> str:
    counts = Counter(_kind(one.answer) for one in found)
    bases = Counter((_kind(one.answer), basis) for one in found for basis in one.answer.bases)
    told = []
    for kind in (
        "reproduced",
        "reproduced in part",
        "reproduced within noise",
        "refuted",
        "not decided",
        "not yet",
    ):
        what = [
            f"{n} {by(basis)}"
            for (of, basis), n in bases.items()
            if of == kind and kind != "not yet"
        ]
        told += (
            [f"{counts[kind]} {kind}" + (f" ({', '.join(what)})" if what else "")]
            if counts[kind]
            else []
        )
    return f"{len(found)} claim{'s' * (len(found) != 1)}: {', '.join(told)}."


def _kind(answer: Answer) -> str:
    in_part = answer.but and answer.verdict in (Verdict.REPRODUCED, Verdict.NOISE)
    return "reproduced in part" if in_part else answer.verdict.value


def _cells(one: Answered) -> list[str]:
    decided = [
        answer for answer in one.answers if answer.verdict is not Verdict.NOT_YET
    ] or one.answers[:1]
    said = "; ".join(answer.text for answer in decided)
    evidence = ". ".join(dict.fromkeys(line for answer in one.answers for line in answer.evidence))
    return [
        one.claim.id,
        f"{one.claim.claim} ({one.claim.where})",
        said,
        evidence,
        one.claim.caution or "-",
    ]


def _by_paper(found: Sequence[Answered]) -> dict[str, list[Answered]]:
    papers: dict[str, list[Answered]] = {}
    for one in found:
        papers.setdefault(one.claim.paper, []).append(one)
    return papers


def _to_run(found: Sequence[Answered]) -> list[tuple[Answered, str]]:
    return [(one, line) for one in found for line in one.commands]


def markdown(found: Sequence[Answered]) -> str:
    lines = [f"# {TITLE}", "", summary_line(found), "", *(f"{line}  " for line in UNDER)]
    for paper, claims in _by_paper(found).items():
        lines += ["", f"## {PAPERS[paper]}", "", _row(HEADINGS), _row(["---"] * len(HEADINGS))]
        lines += [_row(_cells(one)) for one in claims]
    if to_run := _to_run(found):
        lines += ["", f"## {TO_RUN}", ""]
        lines += [f"- {one.claim.id} ({NEEDS[one.claim.needs]}): `{line}`" for one, line in to_run]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("~", "\\~") for cell in cells) + " |"


def comma_separated(found: Sequence[Answered]) -> str:
    """One line an answer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "id",
            "paper",
            "where",
            "claim",
            "expect",
            "answer",
            "basis",
            "but_not",
            "evidence",
            "caution",
            "needs",
            "commands",
        ]
    )
    for one in found:
        c = one.claim
        for answer in one.answers:
            told = [
                answer.verdict.value,
                "; ".join(answer.bases),
                c.but,
                "; ".join(answer.evidence),
                c.caution,
                c.needs,
            ]
            writer.writerow(
                [c.id, c.paper, c.where, c.claim, c.expect, *told, "; ".join(one.commands)]
            )
    return text.getvalue()


def terminal(found: Sequence[Answered]) -> None:
    output = console(WIDTH)
    for paper, claims in _by_paper(found).items():
        table = RichTable(title=PAPERS[paper], box=box.SIMPLE_HEAD, pad_edge=False, show_lines=True)
        for heading, ratio in zip(HEADINGS, (2, 4, 3, 7, 4), strict=True):
            table.add_column(heading, ratio=ratio, overflow="fold")
        for one in claims:
            table.add_row(*map(escape, _cells(one)))
        output.print(table)
    if to_run := _to_run(found):
        output.print(f"[bold]{TO_RUN}[/bold]")
        for one, line in to_run:
            output.print(f"  {one.claim.id}: {line}", highlight=False, markup=False, soft_wrap=True)
    for line in [*UNDER, summary_line(found)]:
        output.print(line, highlight=False, markup=False)


WRITERS: dict[str, Callable[[Sequence[Answered]], str]] = {
    "markdown": markdown,
    "csv": comma_separated,
}


def show(found: Sequence[Answered], form: str) -> None:
    if form == "terminal":
        terminal(found)
    else:
        print(WRITERS[form](found))


def keep(folder: Path, found: Sequence[Answered]) -> None:
    """Write <folder>/claims.md; runs and studies are kept with their tables."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.md").write_text(markdown(found), encoding="utf-8")
