"""Values at the edges of the ranges of knobs, derived from the knobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any, get_args, get_origin

from gcbench.knobs import Kind, Knob, kinds_of, knobs_in


def inside(hint: Any) -> list[Any]:
    """Return the outermost values that a hint admits, and every choice."""
    return [value for kind in kinds_of(hint) for value in _inside(kind)]


def outside(hint: Any) -> list[Any]:
    """Return the nearest values that a hint refuses, and some of other types."""
    values = [value for kind in kinds_of(hint) for value in _outside(kind)]
    if not any(kind.type is NoneType for kind in kinds_of(hint)):
        values.append(None)
    return values


def example(hint: Any) -> Any:
    knob = knobs_in(hint)[0]
    return inside(hint)[0] if knob.example is None else knob.example


def _inside(kind: Kind) -> Iterator[Any]:
    knob = kind.knob or Knob("")
    if kind.type is NoneType:
        yield None
    elif kind.type is bool:
        yield from (True, False)
    elif kind.choices:
        yield from kind.choices
    elif _is_list(kind.type):
        yield from ([value] * (knob.length or 1) for value in _inside(_entry(kind)))
        if not knob.filled and knob.length is None:
            yield []
    elif kind.type is str:
        yield "a"
    else:
        yield from knob.among
        yield from (last for last, _ in _edges(kind))
    if knob.example is not None:
        yield knob.example


def _outside(kind: Kind) -> Iterator[Any]:
    knob = kind.knob or Knob("")
    if kind.type is NoneType:
        return
    if kind.type is bool or kind.choices:
        yield from ("nothing", 1, [])
    elif _is_list(kind.type):
        yield "nothing"
        yield from ([value] * (knob.length or 1) for value in _outside(_entry(kind)))
        if knob.filled:
            yield []
        if knob.length is not None:
            yield from (knob.example[1:], [*knob.example, knob.example[-1]])
        if knob.distinct:
            yield [*knob.example, knob.example[0]]
    elif kind.type is str:
        yield from ("", 1)
    else:
        yield from ("nothing", True, math.nan, math.inf)
        yield from (n + 1 for n in knob.among if n + 1 not in knob.among)
        yield from (beyond for _, beyond in _edges(kind))
        if kind.type is int:
            yield 2.5


def _edges(kind: Kind) -> list[tuple[float, float]]:
    """Return, for each end of the interval, the last value inside and the next one outside."""
    knob = kind.knob or Knob("")
    edges = []
    for bound, outwards in ((knob.at_least, -math.inf), (knob.at_most, math.inf)):
        if bound is not None:
            edges.append((bound, _next(kind, bound, outwards)))
    for bound, inwards in ((knob.above, math.inf), (knob.below, -math.inf)):
        if bound is not None:
            edges.append((_next(kind, bound, inwards), bound))
    return edges


def _next(kind: Kind, value: float, toward: float) -> float:
    if kind.type is int:
        return value + 1 if toward > 0 else value - 1
    return math.nextafter(value, toward)


def _entry(kind: Kind) -> Kind:
    return Kind(get_args(kind.type)[0], replace(kind.knob or Knob(""), example=None))


def _is_list(hint: Any) -> bool:
    return get_origin(hint) in (list, Sequence)
