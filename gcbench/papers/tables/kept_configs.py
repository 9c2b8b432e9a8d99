"""Configurations of rows in the user's cache."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import gcbench
from gcbench.core.conf import conf_directory
from gcbench.core.private import cache_folder, private_folder
from gcbench.runner.config.choices import runs_in, table_directory
from gcbench.runner.identity import (
    Config,
)

log = logging.getLogger("gcbench")
# Files and folders of conf/ from which no configuration of a row comes.
NO_PART = {"bench.yaml", "changes.yaml", "deviations.yaml", "devices", "hydra"}
NO_PART |= {"links.yaml", "table"}  # of a table, what its rows run is hashed
# Rooms and modules of gcbench that decide what a row resolves to.
COMPOSING = (
    "runner/config",
    "runner/settings",
    *(f"runner/{name}.py" for name in ("conf_files", "identity", "differences", "kept_names")),
    *(f"core/{name}.py" for name in ("conf", "errors", "fields")),
    *(f"core/{name}.py" for name in ("method_files", "method_keys")),
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
