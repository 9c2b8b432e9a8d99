"""The tables of keys in --help, made from the knobs and from the files that have these keys."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from textwrap import wrap
from typing import Any

from gcbench.config.checks import SCHEMAS
from gcbench.config.directory import choices_in, conf_directory, read_yaml
from gcbench.identity import format_value
from gcbench.knobs import Knob, kinds_of, knobs_in, knobs_of
from gcbench.settings import BenchSettings, MethodSettings, RunSettings

TOP = {"run": RunSettings, "bench": BenchSettings}  # schemas of keys without a group
FACTS = {"form", "recommended"}  # what a method's file says of it, and nothing computes with
NO_KNOBS = {"compressor", "_target_", *FACTS}
WIDTH = 118
COLUMN = 24  # at which descriptions begin
INDENT = "\n  "  # between lines; the template itself indents the first one


def method_keys() -> dict[str, list[str]]:
    """Return the keys that each choice of compressor adds, in the order of their knobs."""
    return {choice: sort_keys(own) for choice, own in keys_by_choice("compressor").items()}


def keys_by_choice(group: str) -> dict[str, list[str]]:
    """Return the keys that the file of each choice of a group has."""
    folder = conf_directory() / group
    return {choice: _keys_in(folder / f"{choice}.yaml") for choice in choices_in(group)}


def sort_keys(keys: Collection[str]) -> list[str]:
    """Return keys of methods in the order of their knobs, followed by those without a knob."""
    known = list(knobs_of(MethodSettings))
    return sorted(keys, key=lambda key: known.index(key) if key in known else len(known))


def list_method_knobs() -> str:
    """Return the --help text of each key that a method may have, with the methods that have it."""
    keys = method_keys()
    lines = []
    for name, hint in knobs_of(MethodSettings).items():
        having = [choice for choice, own in keys.items() if name in own]
        lacking = [choice for choice in keys if choice not in having]
        if len(lacking) < len(having):
            having = ["all but", *lacking] if lacking else ["all"]
        lines += _lines(name, hint, f"[{' '.join(having)}]")
    return INDENT.join(lines)


def list_choices(group: str) -> str:
    """Return the choices of a group as --help lists them next to the group's name."""
    lines = wrap(" ".join(choices_in(group)), WIDTH - 14)
    return ("\n" + " " * 14).join(lines)


def list_keys(*groups: str) -> str:
    """Return the --help text of the keys of these groups; `run` and `bench` are top-level keys."""
    lines = []
    for group in groups:
        prefix = "" if group in TOP else f"{group}."
        for name, hint in knobs_of(TOP.get(group) or SCHEMAS[group]).items():
            lines += _lines(f"{prefix}{name}", hint)
    return INDENT.join(lines)


def _keys_in(file: Path) -> list[str]:
    """Return the keys of a file and of the files in its defaults list."""
    node = read_yaml(file)
    shared = [
        entry.partition("@")[0]
        for entry in node.pop("defaults", [])
        if entry not in ("_self_", "schema")
    ]
    inherited = [key for name in shared for key in _keys_in(file.parent / f"{name}.yaml")]
    return [key for key in dict.fromkeys([*inherited, *node]) if key not in NO_KNOBS]


def _lines(name: str, hint: Any, ending: str = "") -> list[str]:
    """Return `key=what may be typed` and, in a second column, what it means."""
    knobs = knobs_in(hint)
    choices = "|".join(choice for kind in kinds_of(hint) for choice in kind.choices)
    example = next((format_value(knob.example) for knob in knobs if knob.example is not None), "")
    about = "; ".join(map(_describe, knobs))
    typed = f"{name}={choices or example}"
    text = wrap(f"{about} {ending}".strip(), WIDTH - COLUMN)
    if len(typed) >= COLUMN:
        return [typed, *(" " * COLUMN + line for line in text)]
    return [f"{typed:{COLUMN}}{text[0]}", *(" " * COLUMN + line for line in text[1:])]


def _describe(knob: Knob) -> str:
    """Return the meaning and the range of a knob."""
    interval = knob.interval.removeprefix("of ")
    return f"{knob.about} ({interval})" if interval else knob.about
