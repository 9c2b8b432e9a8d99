"""The tables of keys in --help, made from models and from the files that have these keys."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from textwrap import wrap

from gcbench.config.checks import FACTS
from gcbench.config.directory import choices_in, conf_directory, read_yaml
from gcbench.identity import format_value
from gcbench.settings.compressor import MethodSettings
from gcbench.settings.config import SCHEMAS
from gcbench.settings.fields import Settings, choices_of_kind, hints_of, interval_of, kinds_of
from gcbench.settings.run import BenchSettings, RunSettings

TOP: dict[str, type[Settings]] = {
    "run": RunSettings,
    "bench": BenchSettings,
}
NO_KNOBS = {"compressor", "_target_", *FACTS}
WIDTH = 118
COLUMN = 24  # at which descriptions begin
INDENT = "\n  "  # between lines; the template itself indents the first one


def method_keys() -> dict[str, list[str]]:
    """Return the keys that each choice of compressor adds, in the order of their model."""
    return {choice: sort_keys(own) for choice, own in keys_by_choice("compressor").items()}


def keys_by_choice(group: str) -> dict[str, list[str]]:
    """Return the keys that the file of each choice of a group has."""
    folder = conf_directory() / group
    return {choice: keys_in(folder / f"{choice}.yaml") for choice in choices_in(group)}


def sort_keys(keys: Collection[str]) -> list[str]:
    """Return keys of methods in the order of their model, followed by those that it lacks."""
    known = list(MethodSettings.model_fields)
    return sorted(keys, key=lambda key: known.index(key) if key in known else len(known))


def list_method_knobs() -> str:
    """Return the --help text of each key that a method may have, with the methods that have it."""
    keys = method_keys()
    lines = []
    for name in MethodSettings.model_fields:
        having = [choice for choice, own in keys.items() if name in own]
        lacking = [choice for choice in keys if choice not in having]
        if len(lacking) < len(having):
            having = ["all but", *lacking] if lacking else ["all"]
        lines += _lines(name, name, MethodSettings, f"[{' '.join(having)}]")
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
        schema = TOP.get(group) or SCHEMAS[group]
        for name in schema.model_fields:
            lines += _lines(f"{prefix}{name}", name, schema)
    return INDENT.join(lines)


def keys_in(file: Path) -> list[str]:
    """Return the keys of a file and of the files in its defaults list."""
    node = read_yaml(file)
    shared = [entry.partition("@")[0] for entry in node.pop("defaults", []) if entry != "_self_"]
    inherited = [
        key
        for name in shared
        for key in (
            SCHEMAS[file.parent.name].model_fields
            if name == "schema"
            else keys_in(file.parent / f"{name}.yaml")
        )
    ]
    return [key for key in dict.fromkeys([*inherited, *node]) if key not in NO_KNOBS]


def _lines(typed: str, name: str, schema: type[Settings], ending: str = "") -> list[str]:
    """Return `key=what may be typed` and, in a second column, what it means."""
    kinds = kinds_of(hints_of(schema)[name])
    choices = "|".join(dict.fromkeys(c for kind in kinds for c in choices_of_kind(kind)))
    examples = [format_value(e) for kind in kinds for e in kind.get("examples", [])]
    interval = next(filter(None, map(interval_of, kinds)), "").removeprefix("of ")
    about = f"{schema.model_fields[name].description} {f'({interval})' if interval else ''}".strip()
    typed = f"{typed}={choices or next(iter(examples), '')}"
    text = wrap(f"{about} {ending}".strip(), WIDTH - COLUMN)
    if len(typed) >= COLUMN:
        return [typed, *(" " * COLUMN + line for line in text)]
    return [f"{typed:{COLUMN}}{text[0]}", *(" " * COLUMN + line for line in text[1:])]
