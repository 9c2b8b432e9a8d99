"""What was typed: for Hydra, in the words and quotes of its parser, and as a file of a run.

A run's `config.yaml` has what was typed for it, and --config reads it:

    compressor: qsgd
    bits: 4
    optimizer.lr: 0.1
    trainer: {workers: 4}    # the same as trainer.workers: 4
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gcbench.core.conf import choices_in
from gcbench.core.errors import ConfigError, as_known
from gcbench.core.fields import format_value
from gcbench.core.method_files import to_plain
from gcbench.runner.config.choices import GROUPS, WITH_TARGETS, row_names
from gcbench.runner.config.composed import Composed
from gcbench.runner.config.keys import parse_overrides
from gcbench.runner.config.sentences import bare_word
from gcbench.runner.settings.groups import OTHER_NAMES, RunSettings

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


NAME = "config.yaml"
BEGINNINGS = (("rerun", True), ("resume", "never"), ("resume.mode", "never"))
SIGNS = re.compile(r"[+~]*")


def typed_for(composed: Composed) -> list[str]:
    """Return the overrides of a run, and the folders in which Hydra looked for its own files."""
    searched = [one for one in composed.typed_for_hydra if one.startswith("hydra.searchpath=")]
    folders = {"hydra.searchpath": composed.folders} if composed.folders else {}
    return [*composed.typed, *searched, *to_overrides(folders)]


def write_run_file(typed: Sequence[str]) -> str:
    """Return the content of a run's config.yaml: its command, and what was typed by key.

    How the run began is only in its command, as the file also continues it.
    """
    command = shlex.join(["gcbench", *typed])
    content = dict(_as_in_a_file(key, value) for key, value in parse_overrides(typed).items())
    content = {key: value for key, value in content.items() if (key, value) not in BEGINNINGS}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if content else ""
    return (
        f"# {' '.join(command.split())}\n"
        f"# To run it again: gcbench --config {NAME}, with more key=value after it.\n"
        f"{text}"
    )


def _as_in_a_file(key: str, value: Any) -> tuple[str, Any]:
    """Return a typed key and its value, and for a row of a table always `experiment`."""
    group, _, table = key.removeprefix("+").partition("/")
    if group == "experiment":
        return group, f"{table}/{value}" if table else value
    return key, value


def read_run_file(path: str) -> list[str]:
    """Return the overrides that a file has; raise ConfigError if it is none of a run."""
    file = Path(path)
    if not file.is_file():
        likely = file / NAME
        advice = f"type --config {likely}" if likely.is_file() else f"type that of a run, {NAME}"
        raise ConfigError(f"--config {path}: there is no such file; {advice}")
    try:
        node = OmegaConf.load(file)  # which refuses a key that stands there twice
        keys = {} if node is None else OmegaConf.to_container(node)
    except (yaml.YAMLError, UnicodeError, OmegaConfBaseException, OSError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"--config {path}: the file is not valid YAML: {why}") from error
    if not isinstance(keys, dict):
        raise ConfigError(f"--config {path}: type keys and values in it, as in compressor: qsgd")
    return to_overrides(dict(_typed_keys(keys, path)))


def _typed_keys(keys: Mapping[Any, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in keys.items():
        is_node = isinstance(value, dict) and "_target_" in value
        if is_node and key in GROUPS and key not in WITH_TARGETS:
            raise ConfigError(
                f"--config {path}: {key}._target_={value['_target_']}: this is what becomes of a "
                f"choice, as --cfg job prints it; type the choice, as in {key}: NAME"
            )
        yield "+experiment" if key == "experiment" else str(key), value


def add_run_file(path: str, typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of a file and those typed beside it, and those that the latter replace.

    A typed value replaces the file's, and a typed choice also the file's keys of its group.
    """
    of_file = read_run_file(path)
    values = {_name(one): one.partition("=")[2] for one in of_file}
    replaced = set()
    for override in typed:
        name, _, value = override.partition("=")
        name = _name(name)
        replaced.add(name)
        if name in GROUPS and values.get(name, value).strip("'") != value:
            replaced |= {key for key in values if _is_of_group(key, name)}
        if name == "experiment" or name.startswith("experiment/"):
            replaced |= {key for key in values if key.partition("/")[0] == "experiment"}
    left = [one for one in of_file if _name(one) not in replaced]
    lost = [one for one in of_file if one not in left and _name(one) not in map(_name, typed)]
    return [*left, *typed], lost


def _name(override: str) -> str:
    name = SIGNS.sub("", override.partition("=")[0], count=1)
    return OTHER_NAMES.get(name, name)


def _is_of_group(key: str, group: str) -> bool:
    if group != "compressor":
        return key.startswith(f"{group}.")
    # The keys of a method are typed without their group.
    own = not re.search("[./]", key) and key not in (*GROUPS, *RunSettings.model_fields)
    return key.startswith("compressor.") or (own and key not in ("budget", "experiment"))
