"""What was typed for Hydra, in the words and quotes that its parser reads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from gcbench.core.conf import choices_in
from gcbench.core.errors import ConfigError, as_known
from gcbench.core.fields import format_value
from gcbench.core.method_files import to_plain
from gcbench.runner.config.choices import GROUPS, row_names
from gcbench.runner.config.sentences import bare_word
from gcbench.runner.settings.trainer import OTHER_NAMES

PLAIN = re.compile(r"[\w./:+-]*", re.ASCII)
NOT_TEXT = re.compile(r"[,=\[\](){}'\"\\]")  # what ends a value, or is for the user to close
SPACED = re.compile(r"\s|[^=]*\s=|[^=]*=(\s|.*[\s,]$)")  # at its ends, or at =
WORD = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)  # which Hydra reads as a text, but for NO_TEXTS
NO_TEXTS = ("null", "true", "false", "nan", "inf")
NAMES = re.compile(r"[\w.,-]+", re.ASCII)


def readable(
    overrides: Sequence[str], config_dir: str | None = None, benchmark: bool = False
) -> list[str]:
    """Return overrides with quotes around texts that Hydra cannot read, and names as it has them.

    A ~ is expanded where it is a folder, as shells do it only before an argument. Choices are
    found whatever their case. Raises ConfigError for what a shell has split, words without =, and
    choices that are not one name.
    """
    _refuse_split(overrides)
    elsewhere = any("searchpath" in override for override in overrides)  # have files that we lack
    made = []
    for override, following in zip_longest(overrides, overrides[1:], fillvalue=""):
        key, equals, value = override.partition("=")
        name = key.lstrip("+~")
        signs = key[: len(key) - len(name)]
        if not equals and signs != "~":
            likely = bare_word(override, following, benchmark, overrides)
            raise ConfigError(likely or f"{override or repr('')}: type key=value, as in bits=4")
        if value.startswith("="):
            raise ConfigError(f"{override}: type {key}={value.lstrip('=')}")
        name = OTHER_NAMES.get(name, name)
        if _is_group(name):
            _refuse_no_name(name, value)
            value = _known_choices(name, value, config_dir) if not elsewhere else value
        made.append(f"{signs}{name}{equals}{_quoted(value)}")
    return made


def _refuse_split(words: Sequence[str]) -> None:
    """Refuse a key=value that a shell has split at spaces."""
    for start, word in enumerate(words):
        end = next(
            (n for n in range(len(words), start + 1, -1) if _is_split(words[start:n])), start + 1
        )
        several, joined = " ".join(words[start:end]), "".join(words[start:end])
        if end > start + 1 or SPACED.match(word):
            name, _, value = joined.lstrip("+").partition("=")
            if _is_group(name):
                _refuse_no_name(name, value)
            whole = re.sub(r"\s*([=,])\s*", r"\1", joined).strip(" ,")
            raise ConfigError(f"{several}: there are no spaces around = and commas; type {whole}")


def _is_split(words: Sequence[str]) -> bool:
    """Return whether words are the parts of one key=value."""
    joined = "".join(words)
    if not re.search(r"['\"]", joined) and re.fullmatch(r"[^=]+=\s*[\[{(].*[\]})]", joined):
        opened = [_depth("".join(words[:n])) for n in range(1, len(words))]
        return _depth(joined) == 0 < min(opened)
    return all(
        after[0] in "=," or (before[-1] in "=," and "=" not in after and after[0] != "-")
        for before, after in pairwise(word or " " for word in words)
    )


def _depth(text: str) -> int:
    return sum(text.count(one) for one in "[{(") - sum(text.count(one) for one in ")}]")


def _is_group(name: str) -> bool:
    return "/" in name or name in (*GROUPS, "budget", "experiment")


def _refuse_no_name(group: str, value: str) -> None:
    """Refuse a list of choices, of which Hydra would merge the files, and keys in braces."""
    if value.lstrip().startswith("{"):
        key = re.search(r"(\w+) *: *([^,{}]+)", value)
        prefix = "" if group == "compressor" else f"{group}."
        example = f"{prefix}{key[1]}={key[2]}" if key else "trainer.epochs=1"
        raise ConfigError(
            f"{group}={value}: the keys of a group are typed one by one, as in {example}"
        )
    if "[" in value and "(" not in value:
        names = re.findall(r"[\w./-]+", value) or ["NAME"]
        one, each = f"{group}={names[0]}", f"{group}={','.join(names)}"
        advice = f"{one}, or gcbench -m {each} for a run with each" if names[1:] else one
        raise ConfigError(f"{group}={value}: a run has one choice of a group; type {advice}")


def _known_choices(group: str, value: str, config_dir: str | None) -> str:
    """Return choices with their names as they are spelled in conf/."""
    if not NAMES.fullmatch(value):
        return value
    known = choices_in(group, config_dir) or row_names(group.removeprefix("experiment/"))
    return ",".join(as_known(one, known) for one in value.split(","))


def _quoted(value: str) -> str:
    if PLAIN.fullmatch(value) or NOT_TEXT.search(value):
        return value
    try:
        OverridesParser.create().parse_override(f"key={value}")
    except HydraException:
        return f"'{os.path.expanduser(value)}'"
    return value


def to_overrides(keys: Mapping[str, Any]) -> list[str]:
    """Return Python keys and values as key=value overrides in Hydra's grammar.

    For example, trainer={"epochs": 1} becomes trainer.epochs=1.
    """
    overrides = []
    for name, value in keys.items():
        if isinstance(value, Mapping):
            overrides += to_overrides({f"{name}.{inner}": below for inner, below in value.items()})
        else:
            overrides.append(f"{name}={_quote(to_plain(name, value))}")
    return overrides


def _quote(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_quote, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_quote(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, str):
        if WORD.fullmatch(value) and value.lower() not in NO_TEXTS:
            return value
        text = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{text}'"
    return format_value(value)
