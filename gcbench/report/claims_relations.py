"""Relations of numbers, as in `rank_2 > top_k_high + 0.5`, judged by the spread of seeds.

    a > b              better by more than nothing; a < b the other way round; a < b < c both pairs
    a >= b             not worse than noise
    a ~ b within 0.3   at most so far apart
    a, b > c           of each

Sides are sums of names, numbers and multiples: `1.3 * sgd`, `sgd - 0.5`, `x/sgd - x/qsgd`. Names
that are more than letters, digits, _ and / stand in double quotes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise, product
from typing import NamedTuple

from gcbench.config import ConfigError

TOKEN = re.compile(
    r'\s*(?:"(?P<quoted>[^"]*)"|(?P<number>\d+(?:\.\d+)?)(?![\w/])'
    r"|(?P<name>[\w/]+)|(?P<sign><=|>=|[<>~,+*-]))"
)
COMPARISONS = ("<", "<=", ">", ">=", "~")
NUMBER = ""  # the name of what is added without one

Terms = dict[str, float]  # name to factor
Token = tuple[str, str]  # kind, text


class Verdict(Enum):
    """The verdict on a relation or a claim; one that outweighs others comes before them."""

    REFUTED = "refuted"
    NOT_YET = "not yet"
    NOT_DECIDED = "not decided"
    NOISE = "reproduced within noise"
    REPRODUCED = "reproduced"


class Value(NamedTuple):
    """The value of a row: a mean over seeds."""

    mean: float  # infinite where training diverged
    deviation: float | None  # of one seed; None: not known; infinite: some seeds diverged


class Relation(NamedTuple):
    """A relation between the values of rows."""

    text: str
    difference: Terms  # what should be positive, or near zero
    sign: str  # > | >= | ~
    within: float = 0.0

    @property
    def names(self) -> list[str]:
        return [name for name in self.difference if name != NUMBER]


class Judged(NamedTuple):
    """A relation, and whether it holds."""

    relation: Relation
    verdict: Verdict
    margin: float = math.nan  # by which it holds
    spread: float | None = None  # deviation of the difference between single seeds; None: not known

    @property
    def text(self) -> str:
        spread = (
            "spread not known" if self.spread in (None, math.inf) else f"spread {self.spread:.2g}"
        )
        return f"{self.relation.text}: {self.margin:+.3g} ({spread})"


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    return min(verdicts, key=list(Verdict).index)


def judge(relation: Relation, values: Mapping[str, Value]) -> Judged:
    """Return whether the relation holds: not yet where a value is missing.

    An unknown spread is larger than any finite difference.
    """
    if any(name not in values for name in relation.names):
        return Judged(relation, Verdict.NOT_YET)
    terms = relation.difference
    mean = terms.get(NUMBER, 0.0) + sum(terms[name] * values[name].mean for name in relation.names)
    margin = relation.within - abs(mean) if relation.sign == "~" else mean
    spread = _spread(terms, values)
    return Judged(relation, _verdict(relation.sign, margin, spread), margin, spread)


def _spread(terms: Terms, values: Mapping[str, Value]) -> float | None:
    squares = 0.0
    for name, factor in terms.items():
        if name == NUMBER:
            continue
        deviation = values[name].deviation
        if deviation is None:
            return None
        squares += (factor * deviation) ** 2
    return math.sqrt(squares)


def _verdict(sign: str, margin: float, spread: float | None) -> Verdict:
    noise = (0.0 if math.isinf(margin) else math.inf) if spread is None else spread
    if math.isnan(margin):
        return Verdict.NOT_DECIDED
    if margin > 0 or (margin == 0 and sign != ">"):
        return Verdict.REPRODUCED if margin >= noise else Verdict.NOISE
    if -margin > noise:
        return Verdict.REFUTED
    return Verdict.NOISE if sign == ">=" and math.isfinite(noise) else Verdict.NOT_DECIDED


def read_relations(text: str) -> list[Relation]:
    """Return the relations of one line, which may compare several pairs."""
    tokens = list(_tokens(text))
    within = 0.0
    if len(tokens) > 2 and tokens[-2] == ("name", "within"):
        within = float(tokens[-1][1])
        tokens = tokens[:-2]
    places = [i for i, token in enumerate(tokens) if token[0] == "sign" and token[1] in COMPARISONS]
    if not places or (within and len(places) > 1):
        raise ConfigError(
            f"{text}: a relation compares, as in rank_2 > top_k + 0.5, or rank_2 ~ sgd within 0.3"
        )
    sides = [_alternatives(tokens[a + 1 : b]) for a, b in pairwise([-1, *places, len(tokens)])]
    return [
        _relation(tokens[place][1], left, right, within)
        for place, (lefts, rights) in zip(places, pairwise(sides), strict=True)
        for left, right in product(lefts, rights)
    ]


def _relation(sign: str, left: list[Token], right: list[Token], within: float) -> Relation:
    text = f"{_join(left)} {sign} {_join(right)}" + (f" within {within:g}" if sign == "~" else "")
    turned = -1 if "<" in sign else 1
    difference = {name: turned * factor for name, factor in _terms(left).items()}
    for name, factor in _terms(right).items():
        difference[name] = difference.get(name, 0.0) - turned * factor
    return Relation(text, difference, sign.replace("<", ">"), within)


def _tokens(text: str) -> Iterator[Token]:
    end = 0
    while end < len(text.rstrip()):
        match = TOKEN.match(text, end)
        if match is None:
            raise ConfigError(
                f"{text}: {text[end:].strip()} cannot be read; "
                "names with other signs stand in double quotes"
            )
        yield str(match.lastgroup), match[str(match.lastgroup)]
        end = match.end()


def _alternatives(tokens: Sequence[Token]) -> list[list[Token]]:
    alternatives: list[list[Token]] = [[]]
    for token in tokens:
        if token == ("sign", ","):
            alternatives.append([])
        else:
            alternatives[-1].append(token)
    return alternatives


def _terms(tokens: Sequence[Token]) -> Terms:
    terms: Terms = {}
    factor = 1.0
    for i, (kind, text) in enumerate(tokens):
        if kind == "sign":
            factor *= -1 if text == "-" else 1
        elif kind == "number" and tokens[i + 1 : i + 2] == [("sign", "*")]:
            factor *= float(text)
        else:
            name, amount = (NUMBER, float(text)) if kind == "number" else (text, 1.0)
            terms[name] = terms.get(name, 0.0) + factor * amount
            factor = 1.0
    return terms


def _join(tokens: Sequence[Token]) -> str:
    return " ".join(text for _, text in tokens)
