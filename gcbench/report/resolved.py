"""Resolved configurations of tables' rows, in the user's cache, so that each is composed only once.

Composing one takes 0.15 s, and a report on all claims asks for hundreds.
"""

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
from gcbench.config import conf_directory
from gcbench.config.choices import runs_in, table_directory
from gcbench.identity import Config
from gcbench.private import cache_folder, private_folder

log = logging.getLogger("gcbench")

# Files and folders of conf/ from which no configuration of a row comes.
NO_PART = {"bench.yaml", "changes.yaml", "claims.yaml", "deviations.yaml", "devices", "hydra"}
NO_PART |= {"links.yaml", "table"}  # of a table, what its rows run is hashed
# Rooms and modules of gcbench that decide what a row resolves to.
COMPOSING = ("config", "settings", "identity.py")
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
        line = f"{json.dumps([key, config])}\n".encode()
        with suppress(OSError), (folder / _file_name(table)).open("ab", buffering=0) as file:
            file.write(line)  # at once, as other processes add theirs


@cache
def _read(table: str) -> dict[str, Config]:
    folder, configs = _folder(), {}
    if folder:
        with suppress(OSError):
            for line in (folder / _file_name(table)).read_text().splitlines():
                with suppress(ValueError):  # half a line, of a process that was killed
                    key, config = json.loads(line)
                    configs[key] = config
    return configs


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
