"""Relations between means of rows, such as `rank_2 > top_k_high + 0.5`, and their tests.

    a > b                        a is larger; a < b < c compares both pairs
    a >= b - 0.3                 a is not smaller by 0.3 or more
    abs(a - b) <= 0.3            the means differ by at most 0.3; a == b: they are equal
    (a, b) > c                   both a > c and b > c

A relation is a Python comparison of names, numbers, `+`, `-` and `*`. A slash joins a table and a
row, as in vgg16/sgd, and names that Python does not accept are quoted: "4bit" > "Rank 2, W=4".

A relation holds, or its opposite does, if a two-sided test at 5 % says so, after Holm's correction
for all tests of the claim; that means differ by at most a bound, if two one-sided tests do. The
error of a mean follows from the runs of all rows of the table (`significance.py`).

The order of two accuracies has a second test, that of the test losses of the same runs. It decides
where the accuracies differ by less than noise and point the same way.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise, product
from statistics import fmean
from typing import NamedTuple

from gcbench.config import ConfigError
from gcbench.report.significance import LEVEL, Error, Noise, holm
from gcbench.report.verdicts import Verdict

SIGNS = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "=="}


class Value(NamedTuple):
    """The numbers of a row by seed, or one `exact` number if it is the same for all seeds."""

    by_seed: Mapping[int, float] = {}  # infinite where training diverged
    exact: float | None = None

    @property
    def mean(self) -> float:
        """Return the mean over seeds; NaN if some diverged and others did not."""
        if self.exact is not None:
            return self.exact
        infinite = {x for x in self.by_seed.values() if math.isinf(x)}
        if infinite and len(set(self.by_seed.values())) > 1:
            return math.nan
        return fmean(self.by_seed.values())


@dataclass(frozen=True)
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


class Margin(NamedTuple):
    """The margin by which a relation between means of rows holds, and its error."""

    relation: Relation
    known: bool = True  # whether all of its rows have numbers
    mean: float = math.nan  # by how much the relation holds; negative if it is violated
    error: Error | None = None  # of the mean; None if it is not known
    counts: tuple[int, ...] = ()  # the number of seeds of each row; empty if none depends on one
    of_loss: Margin | None = None  # that of the test losses, if it may decide
    waits: bool = False  # for more steps, however it stands after these

    @property
    def p(self) -> float:
        """Return how likely a margin as far from zero is, in either direction, by chance.

        That an equality holds is margin in both directions, so that each of the two one-sided tests
        may take the whole of `LEVEL` (Schuirmann 1987).
        """
        if self.error is None or math.isnan(self.mean):
            return 1.0
        if self.error.standard == 0:
            return 0.0
        one_sided = self.error.p_above(abs(self.mean))
        return one_sided if self.relation.sign == "==" and self.mean > 0 else 2 * one_sided


class Judged(NamedTuple):
    """A relation, and whether it holds."""

    margin: Margin
    verdict: Verdict
    by_loss: Verdict | None = None  # what the test losses say, if they differ by more than noise
    decided_by_loss: bool = False
    so_far: Verdict | None = None  # what would be the verdict if it did not wait for more steps

    @property
    def text(self) -> str:
        relation, _, mean, error, counts, of_loss, _ = self.margin
        if not counts:
            return f"{relation.text}: {mean:+.3g}"
        seeds = " and ".join(map(str, sorted(set(counts)))) + f" seed{'s' * (set(counts) != {1})}"
        if of_loss and of_loss.error and math.isfinite(of_loss.mean):
            seeds = f"test loss {of_loss.mean:+.3g} +- {of_loss.error.half_width():.2g}, {seeds}"
        if error is None:
            return f"{relation.text}: {mean:+.3g} (error not known, {seeds})"
        if not math.isfinite(mean):
            return f"{relation.text}: {mean:+.3g} ({seeds})"
        return f"{relation.text}: {mean:+.3g} +- {error.half_width():.2g} ({seeds})"


def find_margins(
    relations: Sequence[Relation], values: Mapping[str, Value], noise: Noise
) -> list[Margin]:
    """Return the margin of each relation between rows whose runs differ by this noise."""
    return [_margin(relation, values, noise) for relation in relations]


def _margin(relation: Relation, values: Mapping[str, Value], noise: Noise) -> Margin:
    if not values.keys() >= set(relation.names):
        return Margin(relation, known=False)
    rows = {name: values[name] for name in relation.names}
    mean = relation.margin(relation.difference({name: row.mean for name, row in rows.items()}))
    seeded = {name: row.by_seed for name, row in rows.items() if row.exact is None}
    if not seeded:
        return Margin(relation, mean=mean)
    if math.isfinite(mean):
        error = noise.error(seeded, {name: relation.weights[name] for name in seeded})
    else:
        error = Error(0.0, 1)  # one side diverged with every seed, or the mean is not known
    return Margin(relation, True, mean, error, tuple(map(len, seeded.values())))


def judge(margins: Sequence[Margin]) -> list[Judged]:
    """Return the verdicts on all relations of a claim."""
    tests = [test for margin in margins for test in (margin, margin.of_loss) if test]
    seeded = [test for test in tests if test.counts]
    adjusted = iter(holm([test.p for test in seeded]))
    p_values = iter([next(adjusted) if test.counts else 0.0 for test in tests])
    judged = [
        _judge(margin, next(p_values), next(p_values) if margin.of_loss else 1.0)
        for margin in margins
    ]
    return [
        one._replace(verdict=Verdict.NOT_YET, so_far=one.verdict)
        if one.margin.waits and one.margin.known
        else one
        for one in judged
    ]


def _judge(margin: Margin, p: float, p_of_loss: float) -> Judged:
    of_loss, mean = margin.of_loss, margin.mean
    by_loss = None
    if of_loss and of_loss.mean and p_of_loss < LEVEL:
        by_loss = Verdict.REPRODUCED if of_loss.mean > 0 else Verdict.CONTRARY
    if not margin.known:
        return Judged(margin, Verdict.NOT_YET)
    sign = margin.relation.sign
    holds = mean > 0 or (mean == 0 and sign != ">")
    if p < LEVEL:
        return Judged(margin, Verdict.REPRODUCED if holds else Verdict.CONTRARY, by_loss)
    if by_loss and of_loss and mean * of_loss.mean >= 0:
        return Judged(margin, by_loss, by_loss, decided_by_loss=True)
    equal = sign == ">=" and margin.error is not None and not math.isnan(mean)
    return Judged(margin, Verdict.WITHIN_NOISE if holds or equal else Verdict.NOT_DECIDED, by_loss)


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
