"""The model of all keys is what their classes say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gcbench.core.fields import Count, example

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts/keys"))
Told, merge_hints, merge_texts = (SCRIPT[name] for name in ("Told", "merge_hints", "merge_texts"))


def test_the_file_is_what_the_classes_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/keys", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_changed_meaning_makes_the_file_old() -> None:
    collect = SCRIPT["collect"]
    told = collect()["rank"]
    changed = {**collect(), "rank": [told[0]._replace(about="something else"), *told[1:]]}
    collect.__globals__["collect"] = lambda: changed
    try:
        assert SCRIPT["render"]() != SCRIPT["FILE"].read_text()
    finally:
        collect.__globals__["collect"] = collect


@dataclass
class Wide:
    k: Annotated[int, Field(ge=1), example(3)]
    """values that are sent"""


@dataclass
class Narrow(Wide):
    kind: Literal["a", "b"] = "a"
    """what is
    sent"""
    size: Count = 1


def test_a_class_tells_its_fields_and_those_of_its_bases() -> None:
    told_by = SCRIPT["told_by"]
    Wide.__module__ = Narrow.__module__ = "gcbench.test"
    sys.modules["gcbench.test"] = sys.modules[__name__]
    assert told_by(Narrow) == {
        "k": ("Annotated[int, Field(ge=1), example(3)]", "values that are sent"),
        "kind": ("Literal['a', 'b']", "what is sent"),
        "size": ("Count", None),
    }


def test_what_several_classes_say_is_one_text() -> None:
    def told(*said: tuple[str, str | None]) -> str:
        return str(merge_texts([Told(f"m{i}", *one) for i, one in enumerate(said)]))

    assert told(("int", "size"), ("int", None)) == "size"
    assert told(("int", "size"), ("int", "size"), ("int", "place")) == "size; m2: place"
    assert told(("int", "size"), ("int", "place")) == "m0: size; m1: place"
    assert told(("int", "size"), ("str", "place"), ("str", None)) == "place; m0: size"


def test_what_several_classes_take_is_one_type() -> None:
    def told(*hints: str) -> str:
        return str(merge_hints([Told("m", hint, "") for hint in hints]))

    assert told("Literal['a']", "Literal['b']") == "Literal['a'] | Literal['b']"
    assert told("Count", "Share", "Count") == "Count"
    assert told("Annotated[Count, example(2)]", "Count") == "Annotated[Count, example(2)]"
