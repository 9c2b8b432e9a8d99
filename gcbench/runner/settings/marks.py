"""Marks of a key of a run that say what it is for, besides those of the core."""

from __future__ import annotations

from dataclasses import dataclass
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
