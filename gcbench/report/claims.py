"""The papers' claims: conf/claims.yaml, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gcbench.config import ConfigError, conf_directory, near
from gcbench.report.claims_relations import Relation, read_relations
from gcbench.report.measures import MEASURES
from gcbench.report.tables import build_checked

NEEDS = {
    "exact": "algebra or metered bytes, no training",
    "cpu": "minutes on a CPU",
    "short": "real training",
    "paper": "the paper's full setting, or hardware and data that not everybody has",
}
BUDGETS = ("paper", "cpu")
LEARNING_RATE = "learning_rate"  # the best of a sweep


def join_path(folder: str, name: str) -> str:
    """Return folder/name, or the name where it is in no folder."""
    return f"{folder}/{name}" if folder else name


@dataclass(frozen=True)
class Rows:
    """Relations between rows of tables, on means over seeds."""

    measure: str  # of measures.py, or learning_rate
    of: tuple[str, ...]  # the folder that the names are in; several: the relations hold in each
    hold: tuple[str, ...]
    budgets: tuple[str, ...] = BUDGETS
    # On other data than the paper's, which may bear a claim out and cannot refute it.
    elsewhere: bool = False

    @property
    def relations(self) -> list[tuple[str, Relation]]:
        """Return the relations, each with the folder of its rows."""
        return [
            (folder, relation)
            for folder in self.of
            for text in self.hold
            for relation in read_relations(text)
        ]

    @property
    def paths(self) -> list[str]:
        return list(
            dict.fromkeys(
                join_path(folder, name)
                for folder, relation in self.relations
                for name in relation.names
            )
        )


@dataclass(frozen=True)
class StudyRows:
    """Relations between the rows of a study."""

    name: str
    column: str
    hold: tuple[str, ...]
    # The tables that the rows are of, where the study has several; the relations hold in each.
    of: tuple[str, ...] = ("",)

    @property
    def relations(self) -> list[tuple[str, Relation]]:
        """Return the relations, each with the table of its rows."""
        return [
            (table, relation)
            for table in self.of
            for text in self.hold
            for relation in read_relations(text)
        ]

    @property
    def names(self) -> list[str]:
        return list(
            dict.fromkeys(
                join_path(table, name)
                for table, relation in self.relations
                for name in relation.names
            )
        )


@dataclass(frozen=True)
class Check:
    """The conditions of a claim, all of which have to hold."""

    tests: tuple[str, ...] = ()  # that run with every change; below tests/
    rows: tuple[Rows, ...] = ()
    study: tuple[StudyRows, ...] = ()
    open: str | None = None  # what nothing claim_id can decide yet


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and what would show that it holds."""

    id: str
    paper: str
    where: str
    claim: str
    expect: str
    needs: str
    check: Check
    caution: str | None = None
    but: str | None = None  # for what the checks hold the opposite of what the paper says


def claims_file() -> Path:
    return conf_directory() / "claims.yaml"


def read_claims(paper: str | None = None, name: str | None = None) -> list[Claim]:
    """Return all claims, or those of a paper, or one, whose number is enough: powersgd-10."""
    claims = [_claim(node) for node in yaml.safe_load(claims_file().read_text(encoding="utf-8"))]
    papers = dict.fromkeys(claim.paper for claim in claims)
    if paper is not None and paper not in papers:
        raise ConfigError(f"paper={paper}: type paper={near(paper, papers) or ', '.join(papers)}")
    if name is None:
        return [claim for claim in claims if paper in (None, claim.paper)]
    named = [claim for claim in claims if claim.id == name or claim.id.startswith(f"{name}-")]
    if not named:
        nearest = near(name, [claim.id for claim in claims]) or "id=powersgd-10"
        raise ConfigError(f"id={name}: there is no such claim; type {nearest}")
    return named


def _claim(node: Mapping[str, Any]) -> Claim:
    claim_id = str(node.get("id"))
    check = node.get("check") or {}
    parts = {
        **check,
        "tests": tuple(check.get("tests") or ()),
        "rows": tuple(_rows(part, claim_id) for part in check.get("rows") or ()),
        "study": tuple(_study_rows(part, claim_id) for part in check.get("study") or ()),
    }
    built = {**node, "check": build_checked(Check, parts, claim_id, "claim")}
    claim: Claim = build_checked(Claim, built, claim_id, "claim")
    if claim.needs not in NEEDS:
        raise ConfigError(f"{claim_id}: needs={claim.needs}; type one of {', '.join(NEEDS)}")
    return claim


def _rows(part: Mapping[str, Any], claim_id: str) -> Rows:
    rows: Rows = build_checked(
        Rows,
        {
            **part,
            "of": _as_tuple(part["of"]),
            "hold": tuple(part["hold"]),
            "budgets": tuple(part.get("budgets", BUDGETS)),
        },
        claim_id,
        "claim",
    )
    if rows.measure not in (*MEASURES, LEARNING_RATE):
        raise ConfigError(
            f"{claim_id}: measure={rows.measure} is not known; "
            f"type {near(rows.measure, MEASURES) or LEARNING_RATE}"
        )
    return rows


def _study_rows(part: Mapping[str, Any], claim_id: str) -> StudyRows:
    rows: StudyRows = build_checked(
        StudyRows,
        {**part, "of": _as_tuple(part.get("of", "")), "hold": tuple(part["hold"])},
        claim_id,
        "claim",
    )
    return rows


def _as_tuple(words: str | Sequence[str]) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(words)
