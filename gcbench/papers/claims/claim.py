"""The papers' claims, read from conf/claims.yaml and validated: relations between means of rows.

    a > b                        a is larger; a < b < c compares both pairs
    a >= b - 0.3                 a is not smaller by 0.3 or more
    abs(a - b) <= 0.3            the means differ by at most 0.3; a == b: they are equal
    (a, b) > c                   both a > c and b > c

A relation is a Python comparison of names, numbers, `+`, `-` and `*`. A slash joins a table and a
row, as in vgg16/sgd, and names that Python does not accept are quoted: "4bit" > "Rank 2, W=4".
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from gcbench.core.conf import CHECKED, Texts, build_checked, conf_directory, read_yaml
from gcbench.core.errors import ConfigError, near
from gcbench.runner.config.budget import PAPER
from gcbench.runner.report.measures import MEASURES, SCORES

PAPERS = {
    "qsgd": "QSGD (Alistarh et al., NeurIPS 2017)",
    "powersgd": "PowerSGD (Vogels et al., NeurIPS 2019)",
    "orq": "ORQ and BinGrad (Xu et al., 2020)",
    "maxnorm": "QSGDMaxNorm (Vineeth S, 2021)",
    "ecqsgd": "ECQ-SGD (Wu et al., ICML 2018)",
    "modern": "Later papers and measurements (2025 and 2026)",
}
Needs = Literal[
    "exact",  # algebra or metered bytes, no training
    "cpu",  # minutes on a CPU
    "short",  # real training
    "paper",  # the paper's full setting, or hardware and data that not everybody has
]
STEPS = "cpu_steps"  # has the papers' number of steps
BUDGETS = (PAPER, STEPS, "cpu_long", "cpu_medium", "cpu")  # those closest to the paper first
SIGNS = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "=="}
LEARNING_RATE = "learning_rate"  # the best learning rate of a sweep
EARLY_LOSS = "early_loss"  # the mean training loss over the first tenth of the steps


@dataclasses.dataclass(frozen=True)
class Relation:
    """A relation between rows."""

    text: str
    larger: ast.AST
    smaller: ast.AST
    sign: str  # > | >= | ==
    within: float = 0.0  # the allowed difference, with ==

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*_names(self.larger), *_names(self.smaller)]))

    @cached_property
    def weights(self) -> dict[str, float]:
        """Return the factor of each row in the difference, which is linear."""
        nothing = dict.fromkeys(self.names, 0.0)
        constant = self.difference(nothing)
        return {name: self.difference(nothing | {name: 1.0}) - constant for name in self.names}

    @property
    def orders(self) -> bool:
        """Return whether it only says which of two rows is larger, not by how much."""
        return (
            self.sign != "=="
            and sorted(self.weights.values()) == [-1.0, 1.0]
            and self.difference(dict.fromkeys(self.names, 0.0)) == 0
        )

    @property
    def recovers(self) -> bool:
        """Return whether rows that are equal satisfy it with a margin, as in a >= b - 0.3.

        A method that recovers what another reaches may need the paper's number of steps for it.
        """
        equal = dict.fromkeys(self.names, 1.0)
        return self.sign == "==" or (self.sign == ">=" and self.difference(equal) > 0)

    @property
    def swapped(self) -> Relation:
        return replace(self, larger=self.smaller, smaller=self.larger)

    def difference(self, numbers: Mapping[str, float]) -> float:
        return _evaluate(self.larger, numbers) - _evaluate(self.smaller, numbers)

    def margin(self, difference: float) -> float:
        """Return by how much the relation holds; a negative margin violates it."""
        return self.within - abs(difference) if self.sign == "==" else difference


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


@cache
def read_relations(text: str, folder: str = "") -> Sequence[Relation]:
    """Return the relations of one line, one for each pair of rows of `folder` that it compares.

    Raises ConfigError if the line is not such a relation.
    """
    try:
        compared = ast.parse(text, mode="eval").body
    except SyntaxError:
        compared = None
    if not isinstance(compared, ast.Compare) or {type(op) for op in compared.ops} - SIGNS.keys():
        raise ConfigError(
            f"{text}: a relation compares, as in rank_2 > top_k + 0.5; a name that is no Python "
            'name stands in quotes, as in "4bit" > fp32'
        )
    sides = [
        side.elts if isinstance(side, ast.Tuple) else [side]
        for side in (compared.left, *compared.comparators)
    ]
    return [
        _relation(left, SIGNS[type(op)], right, folder)
        for op, (lefts, rights) in zip(compared.ops, pairwise(sides), strict=True)
        for left, right in product(lefts, rights)
    ]


def _relation(left: ast.expr, sign: str, right: ast.expr, folder: str) -> Relation:
    text = f"{_text(left)} {sign} {_text(right)}"
    within = 0.0
    match left, sign, right:
        case (
            ast.Call(ast.Name("abs"), [ast.BinOp(a, ast.Sub(), b)]),
            "<=",
            ast.Constant(value=float() | int() as bound),
        ):
            left, sign, right, within = a, "==", b, bound
    larger, smaller = (right, left) if "<" in sign else (left, right)
    place = _InFolder(folder).visit
    relation = Relation(
        text, place(deepcopy(larger)), place(deepcopy(smaller)), sign.replace("<", ">"), within
    )
    tripled = relation.difference(dict.fromkeys(relation.names, 3.0))  # raises if it cannot be
    constant = relation.difference(dict.fromkeys(relation.names, 0.0))
    if not math.isclose(tripled - constant, 3 * sum(relation.weights.values()), abs_tol=1e-9):
        raise ConfigError(f"{text}: a relation multiplies rows by numbers only")
    return relation


class _InFolder(ast.NodeTransformer):
    """Replace each name by the path of its row, as a string constant."""

    def __init__(self, folder: str) -> None:
        self._prefix = f"{folder}/" if folder else ""

    def visit(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.Name() | ast.BinOp(op=ast.Div()):
                return ast.Constant(self._prefix + _text(node))
            case ast.Constant(value=str() as name):
                return ast.Constant(self._prefix + name)
        return self.generic_visit(node)


def _text(node: ast.AST) -> str:
    return ast.unparse(node).replace(" / ", "/").replace("'", "")


def _names(side: ast.AST) -> list[str]:
    constants = (node.value for node in ast.walk(side) if isinstance(node, ast.Constant))
    return [name for name in constants if isinstance(name, str)]


def _evaluate(node: ast.AST, numbers: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=str() as name):
            return numbers[name]
        case ast.Constant(value=float() | int() as number):
            return number
        case ast.BinOp(left, ast.Mult(), right):
            return _evaluate(left, numbers) * _evaluate(right, numbers)
        case ast.BinOp(left, ast.Add(), right):
            return _evaluate(left, numbers) + _evaluate(right, numbers)
        case ast.BinOp(left, ast.Sub(), right):
            return _evaluate(left, numbers) - _evaluate(right, numbers)
    raise ConfigError(
        f"{_text(node)}: a relation has names, numbers, +, - and *, or is abs(a - b) <= 0.3"
    )
