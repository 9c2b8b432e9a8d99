"""Marks of a key that say what it is for, besides pydantic's that say its range."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class OneOf:
    """A mark of a text that is one of some, which are known only when the program runs."""

    choices: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.literal_schema([*self.choices])


@dataclass(frozen=True)
class Role:
    """A mark of a key that does not say what a run computes."""

    about: str


EXECUTION = Role("how and where a run executes")
BOOKKEEPING = Role("what a run writes and how it is monitored")
LENGTH = Role("changes when a run is extended")
ELSEWHERE = Role("where results go and what they are called")


@dataclass(frozen=True)
class Neutral:
    """A mark of a key that was added when runs had already been kept.

    A configuration with this value is the same as one without the key.
    """

    value: Any = field(hash=False)


@dataclass(frozen=True)
class Needs:
    """A mark of a key that is read only if another has one of some values.

    The first is the one to type. A number stands for all but 0 and null.
    """

    key: str
    values: tuple[Any, ...]

    def met_by(self, value: Any) -> bool:
        return any(value == v or (type(v) is int and bool(value)) for v in self.values)


WITH_FEEDBACK = Needs("error_feedback", (True, "loco", "ef21"))
