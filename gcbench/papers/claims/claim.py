"""The claims of the papers, which stand beside them: gcbench/papers/qsgd/claims.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Literal

from gcbench.core.errors import ConfigError, near
from gcbench.papers import PAPERS
from gcbench.papers.claims.comparisons import Comparison, grouped
from gcbench.papers.claims.relations import RowRelations, StudyRelations

Needs = Literal[
    "exact",  # algebra or metered bytes, no training
    "cpu",  # minutes on a CPU
    "short",  # real training
    "paper",  # the paper's full setting, or hardware and data that not everybody has
]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and what would show that it holds: all tests pass, all relations hold."""

    id: str  # paper, number and a name
    where: str  # section, equation, table or figure of the paper
    text: str  # what the paper says
    expect: str  # an ordering or a threshold that can be checked
    needs: Needs
    tests: Sequence[str] = ()  # names below tests/, which count if they are recorded as passed
    holds: Sequence[Comparison] = ()  # relations between means over seeds, at each budget
    caution: str | None = None  # numeric checks, slips of the paper, replacements
    but: str | None = None  # the part for which the checks show the opposite
    input: str | None = None  # the part of the answer that the checks start from
    machine: str | None = None  # the machine without which the claim stays open
    gpu_hours: float | None = None  # the estimated cost on that machine
    paper: str = ""  # the folder that it stands in

    @cached_property
    def rows(self) -> list[RowRelations]:
        """Return the relations between rows of tables, by table and measure."""
        return grouped(self.holds, RowRelations)

    @cached_property
    def studies(self) -> list[StudyRelations]:
        """Return the relations between rows of studies, by study and column."""
        return grouped(self.holds, StudyRelations)


def all_claims() -> list[Claim]:
    """Return the claims in the folders of all papers."""
    return [
        replace(claim, paper=paper)
        for paper in PAPERS
        for claim in import_module(f"gcbench.papers.{paper}.claims").CLAIMS
    ]


def read_claims(paper: str | None = None, name: str | None = None) -> list[Claim]:
    """Return all claims, those of a paper, or one, by its id or its number, such as powersgd-10.

    Raises ConfigError if there is no such paper or claim.
    """
    claims = all_claims()
    papers = dict.fromkeys(claim.paper for claim in claims)
    if paper is not None and paper not in papers:
        raise ConfigError(f"paper={paper}: type paper={near(paper, papers) or ', '.join(papers)}")
    if name is None:
        return [claim for claim in claims if paper in (None, claim.paper)]
    named = [claim for claim in claims if claim.id == name or claim.id.startswith(f"{name}-")]
    if not named:
        numbers = ["-".join(claim.id.split("-")[:2]) for claim in claims]
        nearest = near(name, [*(claim.id for claim in claims), *numbers]) or "id=powersgd-10"
        raise ConfigError(f"id={name}: there is no such claim; type {nearest}")
    if paper not in (None, named[0].paper):
        raise ConfigError(f"paper={paper} id={name}: type paper={named[0].paper}, or id= alone")
    return named
