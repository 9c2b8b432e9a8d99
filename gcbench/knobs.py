"""Knobs: annotations that say what a field or an argument means and which values it takes.

    rank: Annotated[int, Knob("columns of the factors", unit="a rank", at_least=1, example=2)]

The type says whether `null` is allowed, and whether only certain texts are. Checks, error messages,
`--help` and the tests of ranges are derived from knobs. This module needs only the standard
library, so that every package may import it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, is_dataclass
from enum import Enum
from functools import cache, wraps
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from gcbench.identity import format_value

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Knob:
    """The meaning and the range of a value or, if the value is a list, of each entry."""

    about: str
    _: KW_ONLY
    unit: str = ""  # a noun for the sentence "type <unit> of at least 1"
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    among: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()  # the only ones allowed
    example: Any = field(default=None, hash=False)
    distinct: bool = False  # whether the entries of a list must differ
    filled: bool = False  # whether a list needs an entry
    length: int | None = None  # that a list must have
    source: str = ""  # the paper that defines it

    def admits(self, value: Any) -> bool:
        """Return whether a value of the right type is in the range."""
        if not isinstance(value, (list, tuple)):
            return self._is_inside(value)
        repeats = self.distinct and len(set(value)) < len(value)
        if (self.filled and not value) or repeats or self.length not in (None, len(value)):
            return False
        return all(map(self._is_inside, value))

    def _is_inside(self, value: Any) -> bool:
        if isinstance(value, str):
            return value in self.texts if self.texts else value != ""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
            and (not self.among or value in self.among)
        )

    @property
    def interval(self) -> str:
        """The range in words, for example `from 2 to 8`; empty if there is none."""
        if self.among:
            return _either(list(map(_number, self.among)))
        if self.at_least is not None and self.at_most is not None:
            return f"from {_number(self.at_least)} to {_number(self.at_most)}"
        if self.above is not None and self.below is not None:
            return f"between {_number(self.above)} and {_number(self.below)}"
        words = {
            "of at least": self.at_least,
            "above": self.above,
            "up to": self.at_most,
            "below": self.below,
        }
        bounds = [f"{word} {_number(n)}" for word, n in words.items() if n is not None]
        return " and ".join(bounds)


class Kind(NamedTuple):
    """One of the types that a type hint allows, with the knob that annotates it."""

    type: Any
    knob: Knob | None

    def admits(self, value: Any) -> bool:
        if not _is_of(self.type, value):
            return False
        return self.knob is None or value is None or self.knob.admits(value)

    @property
    def choices(self) -> list[str]:
        """The texts that may be typed; empty if there are too many to list."""
        if get_origin(self.type) is Literal:
            return [format_value(value) for value in get_args(self.type)]
        if inspect.isclass(self.type) and issubclass(self.type, Enum):
            return [member.name for member in self.type]
        if self.type is str and self.knob is not None:
            return list(self.knob.texts)
        return ["true", "false"] if self.type is bool else []


def kinds_of(hint: Any, knob: Knob | None = None) -> Iterator[Kind]:
    """Yield the types that `hint` allows."""
    if get_origin(hint) is Annotated:
        inside, *marks = get_args(hint)
        yield from kinds_of(inside, next((m for m in marks if isinstance(m, Knob)), knob))
    elif get_origin(hint) in (Union, UnionType):
        for arg in get_args(hint):
            yield from kinds_of(arg, knob)
    else:
        yield Kind(hint, knob)


def knobs_in(hint: Any) -> list[Knob]:
    """Return the knobs that `hint` carries: one, or several where a key means different things."""
    return list(dict.fromkeys(kind.knob for kind in kinds_of(hint) if kind.knob))


def refusal(name: str, value: Any, hint: Any) -> str | None:
    """Return the error message for a value that `name` cannot have; None if it fits the hint."""
    kinds = list(kinds_of(hint))
    if any(kind.admits(value) for kind in kinds):
        return None
    return f"{name}={_format_refused(value, kinds)}: type {_wanted(name, kinds)}"


def _format_refused(value: Any, kinds: Sequence[Kind]) -> str:
    """Return a value as text in which 4.0 and "4" do not look like the whole number 4."""
    types = {kind.type for kind in kinds}
    alike = isinstance(value, float) or (isinstance(value, str) and value.isdigit())
    return repr(value) if alike and int in types and float not in types else format_value(value)


@cache
def hints_of(target: Any) -> dict[str, Any]:
    """Return the annotations of a dataclass, or of the arguments that a callable takes."""
    takes = target.__init__ if inspect.isclass(target) and not is_dataclass(target) else target
    return get_type_hints(takes, include_extras=True)


def knobs_of(target: Any) -> dict[str, Any]:
    """Return the annotations that carry a knob, by name."""
    return dict(_knobs_of(target))


@cache
def _knobs_of(target: Any) -> dict[str, Any]:
    return {name: hint for name, hint in hints_of(target).items() if knobs_in(hint)}


class Checked:
    """Base class of dataclasses that raise ValueError for a field outside its knob's range."""

    def __post_init__(self) -> None:
        for name, hint in knobs_of(type(self)).items():
            _refuse(name, getattr(self, name), hint)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap `function` to raise ValueError for a keyword argument outside its knob's range."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, hint in knobs_of(function).items():
            if name in kwargs:
                _refuse(name, kwargs[name], hint)
        return function(*args, **kwargs)

    return call


def _refuse(name: str, value: Any, hint: Any) -> None:
    if sentence := refusal(name, value, hint):
        raise ValueError(sentence)


def _is_of(kind: Any, value: Any) -> bool:
    """Return whether a value has a plain type; True for types that are not checked."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in args
    if origin in (list, Sequence):
        return isinstance(value, (list, tuple)) and all(_is_of(args[0], entry) for entry in value)
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return isinstance(value, kind) or value in list(kind.__members__)
    if kind is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return (
        isinstance(value, origin or kind)
        if kind in (str, bool, NoneType) or origin is dict
        else True
    )


def _wanted(name: str, kinds: Sequence[Kind]) -> str:
    """Return what to type, for example `a rank of at least 1, as in rank=2, or null`."""
    choices = [choice for kind in kinds for choice in kind.choices]
    wanted = [f"{name}={_either(choices)}"] if choices else []
    wanted += [_describe(name, kind) for kind in kinds if not kind.choices and not _is_null(kind)]
    wanted += ["null"] if any(map(_is_null, kinds)) else []
    return ", or ".join(wanted)


def _describe(name: str, kind: Kind) -> str:
    several = get_origin(kind.type) in (list, Sequence)
    entry = get_args(kind.type)[0] if several else kind.type
    knob = kind.knob or Knob("")
    choices = Kind(entry, knob).choices if several else []
    unit = f"some of {_either(choices)}" if choices else knob.unit
    unit = unit or (SEVERAL if several else ONE).get(entry, str(entry))
    wanted = knob.interval if knob.among else f"{unit} {knob.interval}".strip()
    return (
        wanted if knob.example is None else f"{wanted}, as in {name}={format_value(knob.example)}"
    )


ONE = {int: "a whole number", float: "a number", str: "a text"}
SEVERAL = {int: "whole numbers", float: "numbers", str: "texts"}


def _is_null(kind: Kind) -> bool:
    return kind.type is NoneType


def _number(bound: float) -> str:
    """Return a bound as text, with large powers of two as `2^n`."""
    if isinstance(bound, int) and bound >= 2**31 and bound.bit_count() == 1:
        return f"2^{bound.bit_length() - 1}"
    return str(bound)


def _either(texts: Sequence[str]) -> str:
    """Return `a, b or c`."""
    *first, last = texts
    return f"{', '.join(first)} or {last}" if first else last
