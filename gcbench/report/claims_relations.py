"""Relations between numbers, such as `rank_2 > top_k_high + 0.5`, judged seed by seed.

    a > b                        a is larger by more than noise; a < b < c compares both pairs
    a >= b                       a is not smaller by more than noise
    abs(a - b) <= 0.3            the means differ by at most 0.3; a == b: they are equal
    (a, b) > c                   both a > c and b > c

A relation is a Python comparison of names, numbers, `+`, `-` and `*`. A slash joins a table and a
row, as in vgg16/sgd, and names that Python does not accept are quoted: "4bit" > "Rank 2, W=4".

Noise is the one-sided 90 % bound of Student's t test on pairs, t s / sqrt(n): s is the standard
deviation of n differences between runs of the same seed, and t the quantile at n - 1 degrees of
freedom. It shrinks with more seeds, which therefore decide every relation in which there is a
difference. Two or three differences may agree by chance, so their noise is at least the one that
follows from the median deviation of all relations judged together.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise, product
from statistics import fmean, median, pvariance
from typing import NamedTuple

from gcbench.config import ConfigError
from gcbench.report.verdicts import Verdict

SIGNS = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "=="}
FEW = 3  # up to so many differences, their own deviation is unreliable


class Value(NamedTuple):
    """The numbers of a row by seed, or one `exact` number if it is the same for all seeds."""

    by_seed: Mapping[int, float] = {}  # infinite where training diverged
    exact: float | None = None

    def at(self, seed: int) -> float:
        return self.by_seed[seed] if self.exact is None else self.exact


class Relation(NamedTuple):
    """A relation between rows."""

    text: str
    larger: ast.AST
    smaller: ast.AST
    sign: str  # > | >= | ==
    within: float = 0.0  # the allowed difference, with ==

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*_names(self.larger), *_names(self.smaller)]))

    def difference(self, numbers: Mapping[str, float]) -> float:
        return _evaluate(self.larger, numbers) - _evaluate(self.smaller, numbers)

    def margin(self, difference: float) -> float:
        """Return by how much the relation holds; a negative margin violates it."""
        return self.within - abs(difference) if self.sign == "==" else difference


class Judged(NamedTuple):
    """A relation, and whether it holds."""

    relation: Relation
    verdict: Verdict
    margin: float = math.nan  # mean over the seeds that all its rows have
    seeds: tuple[int, ...] = ()
    noise: float = math.inf  # what the margin has to exceed; infinite if not known
    exact: bool = False  # whether its numbers depend on no seed

    @property
    def text(self) -> str:
        if not self.seeds:
            return f"{self.relation.text}: no seed in common"
        if self.exact:
            return f"{self.relation.text}: {self.margin:+.3g}"
        count = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        noise = f"noise {self.noise:.2g}" if math.isfinite(self.noise) else "noise not known"
        return f"{self.relation.text}: {self.margin:+.3g} ({noise}, {count})"


class PairedDifferences(NamedTuple):
    """The differences between runs of the same seed, for each seed that all rows have."""

    by_seed: dict[int, float]
    exact: bool = False

    @classmethod
    def of(cls, relation: Relation, values: Mapping[str, Value]) -> PairedDifferences:
        rows = {name: values[name] for name in relation.names}
        runs = [set(value.by_seed) for value in rows.values() if value.exact is None]
        seeds = sorted(set.intersection(*runs)) if runs else [0]
        return cls(
            {seed: relation.difference({n: v.at(seed) for n, v in rows.items()}) for seed in seeds},
            exact=not runs,
        )

    @property
    def squares(self) -> float:
        """Return the sum of squares about the mean; infinite if a seed diverged."""
        differences = self.by_seed.values()
        if not all(map(math.isfinite, differences)):
            return math.inf
        return pvariance(differences) * len(differences)

    @property
    def freedom(self) -> int:
        return 0 if self.exact else max(len(self.by_seed) - 1, 0)

    @property
    def mean(self) -> float:
        """Return the mean difference; NaN if each side diverged where the other did not."""
        differences = self.by_seed.values()
        if {math.inf, -math.inf} <= set(differences):
            return math.nan  # fmean would raise
        return fmean(differences)

    def noise(self, together: Sequence[PairedDifferences]) -> float:
        """Return the bound that the mean has to exceed, given all differences judged `together`."""
        if self.exact or all(map(math.isinf, self.by_seed.values())):
            return 0.0  # also if one side diverged with every seed
        if self.freedom and not math.isfinite(self.squares):
            return math.inf
        known = [d for d in together if d.freedom and math.isfinite(d.squares)]
        freedom = sum(d.freedom for d in known)
        if not freedom:
            return math.inf
        if not self.freedom:
            return self._bound(math.sqrt(sum(d.squares for d in known) / freedom), freedom)
        own = self._bound(self.deviation, self.freedom)
        if len(self.by_seed) > FEW:
            return own
        return max(own, self._bound(median(d.deviation for d in known), freedom))

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / self.freedom)

    def _bound(self, deviation: float, freedom: int) -> float:
        return _t_90(freedom) * deviation / math.sqrt(len(self.by_seed))


def _t_90(freedom: int) -> float:
    """Return the one-sided 90 % quantile of Student's t distribution."""
    from scipy.special import stdtrit  # imported here, as it would slow down --help

    return float(stdtrit(freedom, 0.9))


def judge(relations: Sequence[Relation], values: Mapping[str, Value]) -> list[Judged]:
    """Return whether each relation holds, from differences between runs of the same seed.

    If the rows of a relation share only one seed, its noise follows from the deviation pooled over
    the other relations; if these have none either, it is infinite.
    """
    differences = [
        PairedDifferences.of(relation, values) if values.keys() >= set(relation.names) else None
        for relation in relations
    ]
    known = [d for d in differences if d]
    return [_judge(r, d, known) for r, d in zip(relations, differences, strict=True)]


def _judge(
    relation: Relation, differences: PairedDifferences | None, others: Sequence[PairedDifferences]
) -> Judged:
    if differences is None:
        return Judged(relation, Verdict.NOT_YET)
    if not differences.by_seed:
        return Judged(relation, Verdict.NOT_DECIDED)
    noise = differences.noise(others)
    margin = relation.margin(differences.mean)
    exact = differences.exact
    verdict = _verdict(relation.sign, margin, noise, exact)
    return Judged(relation, verdict, margin, tuple(differences.by_seed), noise, exact)


def _verdict(sign: str, margin: float, noise: float, exact: bool) -> Verdict:
    if math.isnan(margin) or (math.isinf(margin) and math.isinf(noise)):
        return Verdict.NOT_DECIDED  # some seeds diverged, and the others may say the opposite
    if margin > 0 or (margin == 0 and sign != ">"):
        above = margin >= noise and math.isfinite(noise)
        return Verdict.REPRODUCED if above else Verdict.WITHIN_NOISE
    if -margin > noise or exact:  # exact equal numbers contradict `>`, too
        return Verdict.CONTRARY
    equal = sign == ">=" and math.isfinite(noise)
    return Verdict.WITHIN_NOISE if equal else Verdict.NOT_DECIDED


def read_relations(text: str, folder: str = "") -> list[Relation]:
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
    relation.difference(dict.fromkeys(relation.names, 0.0))  # raises if it cannot be computed
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
