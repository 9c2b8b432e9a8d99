"""Values at the edges of the ranges of keys, derived from the JSON schemas of their types."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gcbench.core.fields import kinds_of

Kind = Mapping[str, Any]


def inside(hint: Any) -> list[Any]:
    """Return the outermost values that a hint admits, and every choice."""
    return [value for kind in kinds_of(hint) for value in _inside(kind)]


def outside(hint: Any) -> list[Any]:
    """Return the nearest values that a hint refuses, and some of other types."""
    kinds = kinds_of(hint)
    values = [value for kind in kinds for value in _outside(kind)]
    return values if any(kind.get("type") == "null" for kind in kinds) else [*values, None]


def example(hint: Any) -> Any:
    kind = kinds_of(hint)[0]
    return kind["examples"][0] if kind.get("examples") else next(_inside(kind))


def _inside(kind: Kind) -> Iterator[Any]:
    yield from _choices(kind)
    if kind.get("type") == "null":
        yield None
    elif kind.get("type") == "array":
        yield from ([value] * kind.get("minItems", 1) for value in _inside(kind["items"]))
        if not kind.get("minItems"):
            yield []
    elif kind.get("type") == "string" and not _choices(kind):
        yield from () if "title" in kind else ("a",)  # a text of a form, such as a rate
    elif not _choices(kind):
        yield from (last for last, _ in _edges(kind))
    if kind.get("type") != "null":
        yield from kind.get("examples", [])


def _outside(kind: Kind) -> Iterator[Any]:
    if _choices(kind):
        yield from ("nothing", -1, [])
    elif kind.get("type") == "array":
        least = kind.get("minItems", 1)
        yield "nothing"
        yield from ([value] * least for value in _outside(kind["items"]))
        if "minItems" in kind:
            yield [*_inside(kind["items"])][:1] * (least - 1)
        if "maxItems" in kind:
            yield [*_inside(kind["items"])][:1] * (least + 1)
        if kind.get("uniqueItems"):
            yield [*_inside(kind["items"])][:1] * 2
    elif kind.get("type") == "string":
        yield from ("", 1)
    elif kind.get("type") in ("integer", "number"):
        yield from ("nothing", True, math.nan, math.inf)
        yield from (beyond for _, beyond in _edges(kind))
        if kind["type"] == "integer":
            yield 2.5


def _choices(kind: Kind) -> list[Any]:
    if "const" in kind:
        return [kind["const"]]
    return list(kind.get("enum", [True, False] if kind.get("type") == "boolean" else []))


def _edges(kind: Kind) -> list[tuple[float, float]]:
    """Return, for each end of the interval, the last value inside and the next one outside."""
    edges = []
    for key, outwards in (("minimum", -math.inf), ("maximum", math.inf)):
        if key in kind:
            edges.append((kind[key], _next(kind, kind[key], outwards)))
    for key, inwards in (("exclusiveMinimum", math.inf), ("exclusiveMaximum", -math.inf)):
        if key in kind:
            edges.append((_next(kind, kind[key], inwards), kind[key]))
    return edges


def _next(kind: Kind, value: float, toward: float) -> float:
    if kind["type"] == "integer":
        return value + 1 if toward > 0 else value - 1
    return math.nextafter(value, toward)
