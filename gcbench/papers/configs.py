"""Configurations of rows of tables, kept in the user's cache, and the commands that run them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gcbench
from gcbench.core.conf import conf_directory
from gcbench.core.errors import ConfigError, IdleKeyError
from gcbench.core.private import cache_folder, private_folder
from gcbench.papers.tables import TableRow, overrides_of, read_table, table_names
from gcbench.runner.config.budget import PAPER
from gcbench.runner.config.choices import runs_in, table_directory
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.config.rows import merge_row
from gcbench.runner.console import with_bar
from gcbench.runner.identity import (
    ABSENT,
    Config,
    Flat,
    clear_folders,
    flatten_config,
    identify,
)
from gcbench.runner.records.store import RecordedRun


class Composition(NamedTuple):
    """The configuration of an experiment at a budget."""

    config: Config
    choices: dict[str, str]
    flat: Flat
    identity: str


def compose(experiment: str, budget: str = PAPER, overrides: tuple[str, ...] = ()) -> Composition:
    """Return the configuration of `+experiment/<paper>/<table>=<row> budget=... overrides`.

    It is read from the user's cache if it is there, else composed by Hydra and added to it. Raises
    the errors of Hydra and of the configuration checks.
    """
    return _compose_once(experiment, budget, overrides)


@cache
def _compose_once(experiment: str, budget: str, overrides: tuple[str, ...]) -> Composition:
    key = " ".join([experiment, f"budget={budget}", *overrides])
    config = find_resolved(experiment, key)
    if config is None:
        config = clear_folders(compose_experiment(experiment, budget, overrides))
        keep_resolved(experiment, key, config)
    return composition_of(config)


def composition_of(config: Config) -> Composition:
    """Return a resolved configuration of plain values with what is derived from it."""
    return Composition(config, config["choices"], flatten_config(config), identify(config))


def compose_experiment(experiment: str, budget: str, overrides: tuple[str, ...]) -> Config:
    """Return the resolved configuration as plain values."""
    if tree := merge_row(experiment, overrides):
        tree.hydra.runtime.choices["budget"] = budget
        resolved = resolve(tree, _budget_node(budget))
    else:
        typed = [experiment_override(experiment), f"budget={budget}", *overrides]
        resolved = resolve(compose_overrides(typed))
    config: Config = json.loads(json.dumps(resolved.as_dict()))
    return config


@cache
def _budget_node(budget: str) -> Any:
    """Return the budget's node, which is composed once for all experiments."""
    return compose_overrides([f"budget={budget}"]).budget


@cache
def data_folder() -> Path:
    """Return the folder of the data sets: data.root without any override."""
    return Path(compose_overrides([]).data.root).expanduser()


def settings_at(row: TableRow, budget: str) -> dict[str, Any]:
    """Return the row's own settings at a budget, with no more workers than the budget has."""
    settings = {**row.settings, **row.at.get(budget, {})}
    if row.workers is not None and budget != PAPER:
        most = compose(str(row.experiment), budget).config["trainer"]["workers"]
        settings["trainer.workers"] = min(row.workers, most)
    return settings


def compose_row(row: TableRow, budget: str = PAPER, overrides: tuple[str, ...] = ()) -> Composition:
    """Return the row's configuration; `overrides` are added after the row's own."""
    return compose(
        str(row.experiment), budget, (*overrides_of(settings_at(row, budget)), *overrides)
    )


def tables_by_identity(budget: str) -> dict[str, set[str]]:
    """Return by identity the tables that have such a row; several tables may share one run."""
    tables: dict[str, set[str]] = {}
    for name in with_bar(table_names(), f"budget={budget}"):
        for row in read_table(name).rows:
            if row.experiment is not None:
                tables.setdefault(compose_row(row, budget).identity, set()).add(name)
    return tables


def overrides_for(experiment: str, budget: str, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Return the overrides whose key the experiment reads.

    Others do not apply to it: not every row has buckets, for example.
    """
    known = compose(experiment, budget).config
    return tuple(
        override
        for override in overrides
        if read_key(known, override.partition("=")[0]) is not ABSENT
        and not _is_idle(experiment, budget, override)
    )


def _is_idle(experiment: str, budget: str, override: str) -> bool:
    try:
        compose(experiment, budget, (override,))
    except IdleKeyError:
        return True
    return False


def read_key(config: Config, key: str) -> Any:
    """Return the value of a dotted key; ABSENT if there is no such key."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return ABSENT
        node = node[part]
    return node


def experiment_override(experiment: str) -> str:
    group, _, row = experiment.rpartition("/")
    if not group:
        raise ConfigError(
            f"experiment {experiment}: type <paper>/<table>/<row>, as in powersgd/table4/rank_7"
        )
    return f"+experiment/{group}={row}"


log = logging.getLogger("gcbench")

# Files and folders of conf/ from which no configuration of a row comes.
NO_PART = {"bench.yaml", "changes.yaml", "claims.yaml", "deviations.yaml", "devices", "hydra"}
NO_PART |= {"links.yaml", "table"}  # of a table, what its rows run is hashed
# Rooms and modules of gcbench that decide what a row resolves to.
COMPOSING = (
    "runner/config",
    "runner/settings",
    *(f"runner/{name}.py" for name in ("identity", "kept_names")),
    *(f"core/{name}.py" for name in ("conf", "errors", "fields", "keys", "marks", "method_files")),
)
# Lines and ends of lines that are comments, but for `# @package`, which Hydra reads.
COMMENT = re.compile(rb"^[ \t]*#(?! @package).*\n|[ \t]+#.*", re.MULTILINE)
KEPT = 8  # folders of the cache, for so many states of conf/ and of the code


def find_resolved(experiment: str, key: str) -> Config | None:
    """Return the cached configuration of a row; `key` is what it was composed from."""
    return _read(experiment.rpartition("/")[0]).get(key)


def keep_resolved(experiment: str, key: str, config: Config) -> None:
    """Add the configuration of a row to the cache, unless there is no place for one."""
    table = experiment.rpartition("/")[0]
    _read(table)[key] = config
    if folder := _folder():
        kept = json.dumps([key, config]).encode()
        with suppress(OSError), (folder / _file_name(table)).open("ab", buffering=0) as file:
            # At once, as other processes add theirs; the last line may be half a one.
            file.write(b"\n%s %s\n" % (_digest(kept), kept))


@cache
def _read(table: str) -> dict[str, Config]:
    folder, configs = _folder(), {}
    if folder:
        with suppress(OSError):
            for line in (folder / _file_name(table)).read_bytes().splitlines():
                digest, _, kept = line.partition(b" ")
                if digest == _digest(kept):
                    key, config = json.loads(kept)
                    configs[key] = config
    return configs


def _digest(kept: bytes) -> bytes:
    return hashlib.sha256(kept).hexdigest()[:16].encode()


def _file_name(table: str) -> str:
    return f"{table.replace('/', '-')}.jsonl"


@cache
def _folder() -> Path | None:
    """Return the folder of configurations from conf/ as it is; None if it cannot be used."""
    folder = cache_folder("rows") / hash_sources()
    try:
        private_folder(folder, "XDG_CACHE_HOME")
        os.utime(folder)
    except (ValueError, OSError) as error:
        log.warning("configurations of rows are composed anew every time: %s", error)
        return None
    with suppress(OSError):
        for old in sorted(folder.parent.iterdir(), key=os.path.getmtime)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def hash_sources() -> str:
    """Return a hash of what rows are composed from: conf/ without its comments, and the code."""
    root, package = conf_directory(), Path(gcbench.__file__).parent
    hashed = hashlib.sha256(f"{version('hydra-core')} {version('omegaconf')}".encode())
    for path in sorted(root.rglob("*.yaml")):
        inside = path.relative_to(root)
        if inside.parts[0] not in NO_PART:
            hashed.update(f"{inside.as_posix()}\n".encode() + COMMENT.sub(b"", path.read_bytes()))
    for path in sorted(table_directory().glob("*/*.yaml")):
        hashed.update(f"{path.relative_to(root)} {runs_in(path)}\n".encode())
    for part in COMPOSING:
        for path in sorted([package / part, *(package / part).rglob("*.py")]):
            hashed.update(path.read_bytes() if path.is_file() else b"")
    return hashed.hexdigest()[:16]


Typed = tuple[str, Sequence[str]]  # an experiment, and its overrides
Grid = dict[str, list[str]]  # the keys of a command, with the values of each


def command_lines(rows: Iterable[Typed], budget: str, seeds: Iterable[int]) -> list[str]:
    """Return the commands that run exactly these rows; rows that form a grid share a sweep (-m)."""
    numbers = sorted(set(seeds))
    return [_command(grid, budget, numbers) for grid in _grids(rows)]


def _grids(rows: Iterable[Typed]) -> list[Grid]:
    """Return grids whose points are the rows: one grid per row, then merged key by key."""
    grids: list[Grid] = []
    for experiment, overrides in rows:
        pairs = (
            override.partition("=") for override in [experiment_override(experiment), *overrides]
        )
        grid = {key: [value] for key, _, value in pairs}
        if grid not in grids:
            grids.append(grid)
    for key in dict.fromkeys(key for grid in grids for key in grid):
        merged: list[Grid] = []
        for grid in grids:
            rest = {**grid, key: []}
            twins = (other for other in merged if key in other and {**other, key: []} == rest)
            if twin := next(twins, None):
                twin[key] = [*twin[key], *(v for v in grid[key] if v not in twin[key])]
            else:
                merged.append(grid)
        grids = merged
    return grids


def _command(grid: Grid, budget: str, seeds: Sequence[int]) -> str:
    first, *overrides = [f"{key}={','.join(values)}" for key, values in grid.items()]
    parts = [first, *([f"budget={budget}"] if budget != PAPER else []), *overrides]
    if seeds and seeds != [1]:
        parts.append(f"seed={','.join(map(str, seeds))}")
    several = len(seeds) > 1 or any(len(values) > 1 for values in grid.values())
    return " ".join(["gcbench", *(["-m"] if several else []), *map(shlex.quote, parts)])


def command_of_runs(
    experiment: str, runs: Sequence[RecordedRun], overrides: Sequence[str] = ()
) -> str:
    """Return the command that made these runs of an experiment."""
    # With more processes than cores, launcher=auto would have chosen virtual workers.
    crowded = any(run.result.oversubscribed and run.result.launcher == "local" for run in runs)
    launcher = ["trainer.launcher=local"] if crowded else []
    row = experiment, [*overrides, *launcher]
    (line,) = command_lines([row], runs[0].budget, [run.seed for run in runs])
    return line
