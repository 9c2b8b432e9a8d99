"""--help: help.txt and help_bench.txt with tables of keys, and the parts of the whole text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from gcbench.core.conf import choices_in
from gcbench.core.errors import ConfigError, near
from gcbench.core.fields import (
    Settings,
    choices_of_kind,
    format_value,
    hints_of,
    interval_of,
    kinds_of,
)
from gcbench.core.method_keys import MethodSettings
from gcbench.runner.command.subcommands import SUBCOMMANDS
from gcbench.runner.config.keys import method_keys
from gcbench.runner.settings.config import SCHEMAS
from gcbench.runner.settings.groups import OTHER_NAMES, BenchSettings, RunSettings
from gcbench.runner.terminal import COLUMN

TOP: dict[str, type[Settings]] = {
    "run": RunSettings,
    "bench": BenchSettings,
}
INDENT = "\n  "  # between lines; the text itself indents the first one


def help_of(config: str) -> str:
    """Return the whole text of --help of the command with this configuration."""
    name = "help.txt" if config == "config" else f"help_{config}.txt"
    lists: dict[str, Callable[..., str]] = {
        "subcommands": list_subcommands,
        "choices": list_choices,
        "keys": list_keys,
        "knobs": list_method_knobs,
    }
    return re.sub(
        r"\{(\w+):([\w,]*)\}",
        lambda found: lists[found[1]](*filter(None, found[2].split(","))),
        (Path(__file__).parent / name).read_text(encoding="utf-8").rstrip("\n"),
    )


def list_subcommands() -> str:
    """Return the lines of --help that list the subcommands."""
    return INDENT.join(f"{name:12}{one.about}" for name, one in SUBCOMMANDS.items())


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
