"""The same run under another name: tables share rows, and a sweep computes none of them twice."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

from gcbench.config import Config
from gcbench.config.names import BOOKKEEPING, differences
from gcbench.records.files import ENDED
from gcbench.records.reading import read_result

log = logging.getLogger("gcbench")


def same_run(config: Config, directory: Path) -> Path | None:
    """Return the directory of an ended run that is this one under another name, if there is one.

    It lies below `outputs` and differs from the run of `directory` in its name only.
    """
    for path in sorted(Path(config["outputs"]).rglob(f"*{ending(directory)}/result.json")):
        result = read(path)
        if result is None or path.parent.resolve() == directory.resolve():
            continue
        same_budget = result["choices"]["budget"] == config["choices"]["budget"]
        if same_budget and has_ended(result, config):
            return path.parent
    return None


def ending(directory: Path) -> str:
    """Return the end of a directory's name: -s<seed>-<hash of the configuration>.

    Names have no part in the hash; where and how it executes has.
    """
    return f"-s{directory.name.rpartition('-s')[2]}"


def has_ended(result: dict[str, Any] | None, config: Config) -> bool:
    """Return whether `result` is that of a run of this configuration, which would repeat it."""
    return (
        result is not None
        and result["status"] in ENDED
        and not differences(result["config"], config, BOOKKEEPING)
    )


def read(path: Path) -> dict[str, Any] | None:
    """Return a result, or None where it is missing or, which is logged once, cannot be read."""
    try:
        return read_result(path)
    except OSError:
        return None
    except ValueError as error:
        _warn_once(path, str(error))
        return None


@cache
def _warn_once(path: Path, problem: str) -> None:
    log.warning("not read: %s: %s", path, problem)
