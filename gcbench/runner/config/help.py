"""--help: tables of keys, made from models and from files, and the parts of the whole text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap

from gcbench.core.conf import choices_in, file_of, included_in, read_yaml
from gcbench.core.errors import ConfigError, near
from gcbench.core.fields import (
    Settings,
    choices_of_kind,
    format_value,
    hints_of,
    interval_of,
    kinds_of,
)
from gcbench.core.keys import NO_KNOBS, sort_keys
from gcbench.core.method_keys import MethodSettings
from gcbench.runner.settings.config import SCHEMAS
from gcbench.runner.settings.run import BenchSettings, RunSettings
from gcbench.runner.settings.trainer import OTHER_NAMES

TOP: dict[str, type[Settings]] = {
    "run": RunSettings,
    "bench": BenchSettings,
}
COLUMN = 24  # at which descriptions begin
INDENT = "\n  "  # between lines; the template itself indents the first one


def method_keys() -> dict[str, list[str]]:
    """Return the keys that each choice of compressor adds, in the order of their model."""
    return {choice: sort_keys(own) for choice, own in keys_by_choice("compressor").items()}


@cache  # as there are a hundred files
def keys_by_choice(group: str) -> Mapping[str, Sequence[str]]:
    """Return the keys that the file of each choice of a group has."""
    return {choice: keys_in(file_of(group, choice)) for choice in choices_in(group)}


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
    return " ".join(choices_in(group))


def list_keys(*groups: str) -> str:
    """Return the --help text of the keys of these groups; `run` and `bench` are top-level keys."""
    lines = []
    for group in groups:
        prefix = "" if group in TOP else f"{group}."
        schema = TOP.get(group) or SCHEMAS[group]
        for name in schema.model_fields:
            key = f"{prefix}{name}"
            lines += _lines(key, name, schema)
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
            else keys_in(included_in(file, name))
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
    about = " ".join(f"{about} {ending}".split())
    return [f"{typed:{COLUMN - 2}}  {about}"]


def short_help(text: str) -> str:
    """Return what of the whole text fits on a screen: usage, subcommands and examples."""
    sections = text.split("\n\n")
    shown = ("Subcommands", "Examples")
    return "\n\n".join(
        section
        for section in sections
        if section.strip().startswith(shown) or section in (*sections[:2], sections[-1])
    )


def help_on(text: str, topic: str) -> str:
    """Return what the whole text says of a group or of a key; raise ConfigError if it says nothing.

    A key may be typed without its group.
    """
    entries: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if re.match(r" {2}\S", line):
            name = re.split("[ =]", line.strip(), maxsplit=1)[0]
            entries.setdefault(name.removesuffix("/PAPER/TABLE"), []).append(line)
    wanted = OTHER_NAMES.get(topic, topic)
    names = [name for name in entries if name == wanted or name.startswith(f"{wanted}.")]
    if wanted == "compressor":
        names += MethodSettings.model_fields
    names = names or [name for name in entries if name.rpartition(".")[2] == wanted]
    if not names:
        likely = near(topic, {*entries, *(name.rpartition(".")[2] for name in entries)})
        raise ConfigError(f"--help {topic}: there is no such group or key; type {likely or 'all'}")
    return "\n".join(line for name in dict.fromkeys(names) for line in entries.get(name, []))


def fold(text: str) -> str:
    """Return text with its lines folded to the terminal, under their second column if there is one.

    80 columns where nothing tells the width.
    """
    width = max(40, get_terminal_size((80, 24)).columns)
    lines = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        column = re.match(r" *\S+( \S+)*? {2,}(?=\S)", line)
        inner = min(len(column[0]) if column else indent + 4 * (indent > 0), COLUMN + 4)
        if len(line) <= width:
            lines.append(line)
            continue
        first, rest = (
            (column[0], line[len(column[0]) :]) if column else (" " * indent, line.strip())
        )
        if len(first) > inner:  # a long key has a line of its own
            lines += wrap(first.rstrip(), width, subsequent_indent=" " * indent)
            first = " " * inner
        lines += wrap(
            rest,
            width,
            initial_indent=first,
            subsequent_indent=" " * inner,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
