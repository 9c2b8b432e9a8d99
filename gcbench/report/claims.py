"""The papers' claims: conf/claims.yaml, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from gcbench.config import ConfigError, conf_directory, near
from gcbench.report.claims_relations import Relation, read_relations
from gcbench.report.measures import MEASURES

NEEDS = {
    "exact": "algebra or metered bytes, no training",
    "cpu": "minutes on a CPU",
    "short": "real training",
    "paper": "the paper's full setting, or hardware and data that not everybody has",
}
BUDGETS = ("paper", "cpu")
LEARNING_RATE = "learning_rate"  # the best of a sweep


def inside(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


@dataclass(frozen=True)
class Rows:
    """Relations between rows of tables, on means over seeds."""

    measure: str  # of measures.py, or learning_rate
    of: tuple[str, ...]  # the folder that the names are in; several: the relations hold in each
    hold: tuple[str, ...]
    budgets: tuple[str, ...] = BUDGETS
    elsewhere: bool = (
        False  # on other data than the paper's, which may bear a claim out and cannot refute it
    )

    @property
    def relations(self) -> list[tuple[str, Relation]]:
        """With their folder."""
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
                inside(folder, name)
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
    of: tuple[str, ...] = (
        "",
    )  # the table that the rows are of, where the study has several; the relations hold in each

    @property
    def relations(self) -> list[tuple[str, Relation]]:
        """With their table."""
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
                inside(table, name) for table, relation in self.relations for name in relation.names
            )
        )


@dataclass(frozen=True)
class Check:
    """All of it has to hold."""

    tests: tuple[str, ...] = ()  # that run with every change; below tests/
    rows: tuple[Rows, ...] = ()
    study: tuple[StudyRows, ...] = ()
    open: str | None = None  # what nothing here can decide yet


@dataclass(frozen=True)
class Claim:
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
    """All, or those of a paper, or one (its number is enough: powersgd-10)."""
    claims = [_claim(node) for node in yaml.safe_load(claims_file().read_text(encoding="utf-8"))]
    papers = dict.fromkeys(claim.paper for claim in claims)
    if paper is not None and paper not in papers:
        raise ConfigError(f"paper={paper}: type paper={near(paper, papers) or ', '.join(papers)}")
    if name is None:
        return [claim for claim in claims if paper in (None, claim.paper)]
    found = [claim for claim in claims if claim.id == name or claim.id.startswith(f"{name}-")]
    if not found:
        raise ConfigError(
            f"id={name}: there is no such claim; type {near(name, [c.id for c in claims]) or 'id=powersgd-10'}"
        )
    return found


def _claim(node: Mapping[str, Any]) -> Claim:
    here = str(node.get("id"))
    check = node.get("check") or {}
    parts = {
        **check,
        "tests": tuple(check.get("tests") or ()),
        "rows": tuple(_rows(part, here) for part in check.get("rows") or ()),
        "study": tuple(_study_rows(part, here) for part in check.get("study") or ()),
    }
    claim: Claim = _made(Claim, {**node, "check": _made(Check, parts, here)}, here)
    if claim.needs not in NEEDS:
        raise ConfigError(f"{here}: needs={claim.needs}; type one of {', '.join(NEEDS)}")
    return claim


def _rows(part: Mapping[str, Any], here: str) -> Rows:
    rows: Rows = _made(
        Rows,
        {
            **part,
            "of": _several(part["of"]),
            "hold": tuple(part["hold"]),
            "budgets": tuple(part.get("budgets", BUDGETS)),
        },
        here,
    )
    if rows.measure not in (*MEASURES, LEARNING_RATE):
        raise ConfigError(
            f"{here}: measure={rows.measure} is not known; type {near(rows.measure, MEASURES) or LEARNING_RATE}"
        )
    return rows


def _study_rows(part: Mapping[str, Any], here: str) -> StudyRows:
    rows: StudyRows = _made(
        StudyRows, {**part, "of": _several(part.get("of", "")), "hold": tuple(part["hold"])}, here
    )
    return rows


def _several(words: str | Sequence[str]) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(words)


def _made(kind: Any, node: Mapping[str, Any], here: str) -> Any:
    allowed = {field.name for field in fields(kind)}
    for key in node:
        if key not in allowed:
            raise ConfigError(
                f"{here}: {key} is no key of a claim; type {near(key, allowed) or ', '.join(sorted(allowed))}"
            )
    try:
        return kind(**node)
    except TypeError as error:  # a key without a default is missing
        raise ConfigError(f"{here}: a claim {str(error).partition('__init__() ')[2]}") from error
