"""A run as a file: `config.yaml` in its folder has what was typed for it, and --config reads it.

compressor: qsgd
bits: 4
optimizer.lr: 0.1
trainer: {workers: 4}    # the same as trainer.workers: 4
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gcbench.core.errors import ConfigError
from gcbench.runner.config.choices import GROUPS, WITH_TARGETS
from gcbench.runner.config.composed import Composed
from gcbench.runner.config.keys import parse_overrides
from gcbench.runner.config.typed import to_overrides
from gcbench.runner.settings.run import RunSettings
from gcbench.runner.settings.trainer import OTHER_NAMES

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
