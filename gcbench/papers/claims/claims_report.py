"""The command `gcbench papers claims`: answers as markdown, csv, or on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from rich.padding import Padding
from rich.text import Text

from gcbench.core.errors import ConfigError
from gcbench.papers import PAPERS
from gcbench.papers.claims.answers import AnsweredClaim, answer_claim
from gcbench.papers.claims.claim import read_claims
from gcbench.papers.claims.evidence import Evidence
from gcbench.papers.claims.missing import steps_of
from gcbench.papers.claims.verdicts import DECIDED, Verdict
from gcbench.papers.tables.keep import keep_study, keep_tests
from gcbench.papers.tables.report import OfPapers
from gcbench.papers.tables.rows import refuse_unknown_keys
from gcbench.runner import console
from gcbench.runner.arguments import read_arguments
from gcbench.runner.config.budget import PAPER
from gcbench.runner.console import TextTable, with_bar
from gcbench.runner.report.document import DIRTY, DIRTY_NOTE, STALE, STALE_NOTE
from gcbench.runner.settings.groups import OneOf

TITLE = "Claims of the papers"
TO_RUN = "What would decide the others, and its cost"
UNDER = [
    "A relation between means of rows holds, or its opposite does, if a two-sided t test at 5 % "
    "says so, after Holm's correction for all tests of the claim; that means differ by at most a "
    "bound, if two one-sided tests do. +- is half of the 95 % interval, before that correction. "
    "The standard deviation is pooled over the rows of the table, unless Bartlett's test finds "
    "that theirs differ; rows are compared seed by seed only where they have good and bad seeds "
    "in common. Rows have three seeds, and some of undecided claims six. A run that diverged is "
    "worse than any number. Seconds on links are tested with the spread of their steps, or are "
    "medians of one run and called untested.",
    "The order of two accuracies has a second test, that of the test losses of the same runs. It "
    "decides where the accuracies differ by less than noise and point the same way. Sizes, such "
    "as one point below, are decided by accuracy alone.",
    "Each budget is judged separately. Of those at which all rows have three seeds, the one that "
    "is closest to the paper's counts, whatever it says: at the others the model is smaller, with "
    "the paper's steps, up to 39,000 of 4 x 32 images, at cpu_steps, and with fewer at cpu_long, "
    "cpu_medium and cpu. Costs come from kept runs of the same table; for runs that need a special "
    "machine they are estimates.",
    "That a method recovers what training without compression reaches (an equality within a bound, "
    "or a bound on what is lost) is judged from cpu_steps on, where that budget has more steps, "
    "and the evidence tells how it stands with fewer. An interval answers it: how far the row ends "
    "behind, at 95 %, and in test loss, where less is better. It is reproduced or contrary if the "
    "test says that the gap is on one side of what is allowed. Rows are equal only if two "
    "one-sided tests with these seeds show that of equal rows with a power above 0.8. With runs of "
    "three lengths or more, log(gap) = log C - p log(steps) is fitted; the interval of p is from "
    "the seeds, and wider where the points miss the line by more.",
    f"{DIRTY}: some of its runs are {DIRTY_NOTE}. {STALE}: some are {STALE_NOTE} "
    "(conf/changes.yaml).",
]


def summary_line(claims: Sequence[AnsweredClaim]) -> str:
    """Return how many claims are decided, and how many have each verdict."""
    counts = Counter(answered.answer.verdict for answered in claims)
    decided = sum(counts[verdict] for verdict in DECIDED)
    parts = ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v])
    return f"{len(claims)} claim{'s' * (len(claims) != 1)}, {decided} decided: {parts}."


def legend(claims: Sequence[AnsweredClaim]) -> list[str]:
    """Return what the verdicts among the answers mean."""
    verdicts = {answer.verdict for answered in claims for answer in answered.answers}
    return [f"{verdict.value}: {verdict.meaning}." for verdict in Verdict if verdict in verdicts]


def _facts(answered: AnsweredClaim) -> list[str]:
    """Return what the paper says, the answers, their evidence, and a caution if there is one."""
    claim, answers = answered.claim, answered.answers
    decisive = [answer for answer in answers if answer.verdict is not Verdict.NOT_YET]
    evidence = dict.fromkeys(line for answer in answers for line in answer.evidence)
    return [
        f"The paper says: {claim.text} ({claim.where})",
        f"Answer: {'; '.join(answer.text for answer in decisive or answers[:1])}",
        *(f"Evidence: {line}" for line in evidence),
        *([f"Caution: {claim.caution}"] if claim.caution else []),
    ]


def _by_paper(claims: Sequence[AnsweredClaim]) -> dict[str, list[AnsweredClaim]]:
    papers: dict[str, list[AnsweredClaim]] = {}
    for answered in claims:
        papers.setdefault(PAPERS[answered.claim.paper], []).append(answered)
    return papers


def _overview(title: str, claims: Sequence[AnsweredClaim]) -> TextTable:
    rows = [[answered.claim.id, answered.answer.short] for answered in claims]
    return TextTable(["claim", "answer"], rows, left=(0, 1), title=title)


def _to_run(claims: Sequence[AnsweredClaim], quote: str = "") -> list[str]:
    """Return one line per step: the claim, the cost, and the commands, each within `quote`."""
    return [
        f"{answered.claim.id} ({step.cost}): "
        + " ; ".join(f"{quote}{line}{quote}" for line in step.commands)
        for answered in claims
        for step in answered.steps
    ]


def markdown(claims: Sequence[AnsweredClaim]) -> str:
    """Return a page: answers and evidence by paper, and what would decide the other claims."""
    lines = [f"# {TITLE}", "", summary_line(claims), ""]
    lines += [f"- {line}" for line in legend(claims)]
    lines += ["", *(f"{line}  " for line in UNDER)]
    for title, of_paper in _by_paper(claims).items():
        lines += ["", f"## {title}", "", console.markdown(_overview(title, of_paper))]
        for answered in of_paper:
            facts = (f"- {console.escape_markdown(fact)}" for fact in _facts(answered))
            lines += ["", f"**{answered.claim.id}**", "", *facts]
    if to_run := _to_run(claims, "`"):
        lines += ["", f"## {TO_RUN}", "", *(f"- {line}" for line in to_run)]
    return "\n".join(lines) + "\n"


def comma_separated(claims: Sequence[AnsweredClaim]) -> str:
    """Return CSV with one line per answer."""
    from pandas import DataFrame

    records = [
        {
            "id": answered.claim.id,
            "paper": answered.claim.paper,
            "where": answered.claim.where,
            "claim": answered.claim.text,
            "expect": answered.claim.expect,
            "answer": answer.verdict.value,
            "basis": "; ".join(answer.bases),
            "but_not": answered.claim.but,
            "evidence": "; ".join(answer.evidence),
            "caution": answered.claim.caution,
            "needs": answered.claim.needs,
            "commands": "; ".join(line for step in answered.steps for line in step.commands),
            "cost": "; ".join(step.cost for step in answered.steps),
        }
        for answered in claims
        for answer in answered.answers
    ]
    return console.comma_separated(DataFrame(records, dtype=object))


def print_claims(claims: Sequence[AnsweredClaim], in_full: bool = False) -> None:
    """Print a line per claim and the summary; `in_full`, also evidence, and what is to be run."""
    output = console.console()
    width = 2 + max(len(answered.claim.id) for answered in claims)
    for title, of_paper in _by_paper(claims).items():
        if not in_full:
            output.print(Text(title, style="bold"))
            for answered in of_paper:
                line = f"{answered.claim.id:{width}}{answered.answer.short}"
                output.print(Text(line), no_wrap=True, overflow="ellipsis")
            continue
        for answered in of_paper:
            output.print(Text(answered.claim.id, style="bold"))
            for fact in _facts(answered):
                output.print(Padding(Text(fact), (0, 0, 0, 2), expand=False))
        console.print_table(_overview(title, of_paper), output)
    if not in_full:
        output.print(f"Why, and what to run for more: gcbench papers claims {claims[0].claim.id}")
        output.print(Text(summary_line(claims)))
        return
    if to_run := _to_run(claims):
        output.print(Text(TO_RUN, style="bold"))
        for line in to_run:  # not wrapped, so that it can be copied
            output.print(Text(f"  {line}"), soft_wrap=True)
    for line in [*legend(claims), *UNDER, summary_line(claims)]:
        output.print(Text(line))


WRITERS: dict[str, Callable[[Sequence[AnsweredClaim]], str]] = {
    "markdown": markdown,
    "csv": comma_separated,
}


def show_claims(claims: Sequence[AnsweredClaim], form: str, in_full: bool) -> None:
    """Print the answers on the terminal, or in one of the forms of WRITERS."""
    if form == "terminal":
        print_claims(claims, in_full)
    else:
        print(WRITERS[form](claims))


def keep_claims(folder: Path, claims: Sequence[AnsweredClaim]) -> None:
    """Write <folder>/claims.md; runs and studies are kept with their tables."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.md").write_text(markdown(claims), encoding="utf-8")


class Claims(OfPapers):
    """Print the verdict on each of 80 claims of papers, its evidence, and the commands that would
    decide open ones. Budgets are judged separately.
    """

    usage = "gcbench papers claims [orq-05] [paper=orq] [key=value ...]"

    paper: str | None = None
    """whose claims: qsgd, powersgd, orq, maxnorm, ecqsgd or modern (later ones); by default all"""
    id: str | None = None
    """one claim in full, as in id=powersgd-10, or powersgd-10 alone"""
    format: Annotated[str, OneOf(("terminal", *WRITERS))] = Field(
        "terminal", description=", ".join(("terminal", *WRITERS))
    )
    keep: str | None = None
    """a folder for claims.md and the studies behind it, as in keep=outputs"""


def claims(typed: Sequence[str]) -> None:
    """Print the answers to the papers' claims, and write them to files if `keep` was typed."""
    arguments = read_arguments(Claims, typed)
    named = [*arguments.plain, *filter(None, [arguments.id])]
    if len(named) > 1:
        raise ConfigError(f"claims {' '.join(named)}: type one claim, or paper= for several")
    arguments.id = next(iter(named), None)
    if arguments.keep and (arguments.paper or arguments.id):
        raise ConfigError(
            f"keep={arguments.keep}: all claims are kept together; leave out paper= and id="
        )
    asked = read_claims(arguments.paper, arguments.id)
    evidence = Evidence(arguments.load(), arguments.results, arguments.beside)
    paths = dict.fromkeys(p for claim in asked for part in claim.rows for p in part.paths)
    experiments = [str(evidence.spec(path).experiment) for path in paths]
    refuse_unknown_keys(arguments.beside, experiments, PAPER, "these claims")
    answered = [answer_claim(claim, evidence) for claim in with_bar(asked, "claims")]
    answered = [one._replace(steps=steps_of(one, evidence)) for one in answered]
    show_claims(answered, arguments.format, "-" in (arguments.id or ""))
    if arguments.keep:
        keep_claims(Path(arguments.keep), answered)
        for kept in filter(None, evidence.studies.values()):
            # scripts/turns steps keeps its tables of links itself.
            if not kept.study["study"].startswith("links/"):
                keep_study(Path(arguments.keep), kept.path)
        if evidence.tests:
            keep_tests(Path(arguments.keep), evidence.tests.path)
