"""The papers' claims, read from conf/claims.yaml and validated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from gcbench.config import PAPER, ConfigError, conf_directory, near, read_yaml
from gcbench.config.directory import CHECKED, Texts, build_checked
from gcbench.report.claims_relations import Relation, read_relations
from gcbench.report.measures import MEASURES, SCORES

PAPERS = {
    "qsgd": "QSGD (Alistarh et al., NeurIPS 2017)",
    "powersgd": "PowerSGD (Vogels et al., NeurIPS 2019)",
    "orq": "ORQ and BinGrad (Xu et al., 2020)",
    "maxnorm": "QSGDMaxNorm (Vineeth S, 2021)",
    "ecqsgd": "ECQ-SGD (Wu et al., ICML 2018)",
}
Needs = Literal[
    "exact",  # algebra or metered bytes, no training
    "cpu",  # minutes on a CPU
    "short",  # real training
    "paper",  # the paper's full setting, or hardware and data that not everybody has
]
STEPS = "cpu_steps"  # has the papers' number of steps
BUDGETS = (PAPER, STEPS, "cpu_long", "cpu_medium", "cpu")  # those closest to the paper first
LEARNING_RATE = "learning_rate"  # the best learning rate of a sweep
EARLY_LOSS = "early_loss"  # the mean training loss over the first tenth of the steps


@dataclass(frozen=True, config=CHECKED, kw_only=True)
class Related:
    """Relations between rows, which have to hold in each of the folders `of`."""

    hold: Texts
    of: Texts = ("",)

    @cached_property
    def relations(self) -> list[Relation]:
        return [
            relation
            for folder in self.of
            for text in self.hold
            for relation in read_relations(text, folder)
        ]

    @property
    def paths(self) -> list[str]:
        return list(dict.fromkeys(name for relation in self.relations for name in relation.names))


@dataclass(frozen=True, config=CHECKED, kw_only=True)
class RowRelations(Related):
    """Relations between rows of tables; `of` names tables of conf/table."""

    measure: str  # a name in measures.py, early_loss or learning_rate
    budgets: Texts = BUDGETS

    @property
    def score(self) -> str:
        """Return the score by which a row's learning rate is chosen, if several were tried."""
        return self.measure if self.measure in SCORES else "accuracy"


@dataclass(frozen=True, config=CHECKED, kw_only=True)
class StudyRelations(Related):
    """Relations between rows of a study; `of` names the tables, if the study has several."""

    name: str
    column: str


@dataclass(frozen=True, config=CHECKED)
class Check:
    """The conditions of a claim, all of which have to hold."""

    tests: Texts = ()  # names below tests/, which count if they are recorded as passed
    rows: tuple[RowRelations, ...] = ()
    study: tuple[StudyRelations, ...] = ()
    open: str | None = None  # what is missing, if nothing here can decide the claim yet


@dataclass(frozen=True, config=CHECKED)
class Claim:
    """A claim of a paper, and what would show that it holds."""

    id: str
    paper: str
    where: str
    text: str  # what the paper says
    expect: str
    needs: Needs
    check: Check
    caution: str | None = None
    but: str | None = None  # the part for which the checks show the opposite
    input: str | None = None  # the part of the answer that the checks start from
    machine: str | None = None  # the machine without which the claim stays open
    gpu_hours: float | None = None  # the estimated cost on that machine


def claims_file() -> Path:
    return conf_directory() / "claims.yaml"


def read_claims(paper: str | None = None, name: str | None = None) -> list[Claim]:
    """Return all claims, those of a paper, or one, by its id or its number, such as powersgd-10.

    Raises ConfigError if there is no such paper or claim.
    """
    claims = [_claim(node) for node in read_yaml(claims_file())]
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


def _claim(node: Mapping[str, Any]) -> Claim:
    claim_id = str(node.get("id"))
    claim = build_checked(Claim, node, claim_id)
    measures = {rows.measure for rows in claim.check.rows}
    for measure in sorted(measures - MEASURES.keys() - {LEARNING_RATE, EARLY_LOSS}):
        raise ConfigError(
            f"{claim_id}: measure={measure} is not known; "
            f"type {near(measure, MEASURES) or LEARNING_RATE}"
        )
    return claim
