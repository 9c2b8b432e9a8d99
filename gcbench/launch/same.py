"""The same run under another name: tables share rows, and a sweep computes none of them twice."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from gcbench.config import Config
from gcbench.identity import BOOKKEEPING, differences
from gcbench.records.files import ENDED
from gcbench.records.schema import Result
from gcbench.records.store import read_run

log = logging.getLogger("gcbench")


def find_same_run(config: Config, directory: Path) -> Path | None:
    """Return the directory of an ended run that is this one under another name, if there is one.

    It lies below `outputs` and differs from the run of `directory` in its name only.
    """
    for path in sorted(Path(config["outputs"]).rglob(f"*{name_suffix(directory)}/result.json")):
        result = read_result_or_warn(path)
        if result is None or path.parent.resolve() == directory.resolve():
            continue
        same_budget = result.choices["budget"] == config["choices"]["budget"]
        if same_budget and is_final_result(result, config):
            return path.parent
    return None


def name_suffix(directory: Path) -> str:
    """Return the end of a directory's name: -s<seed>-<hash of the configuration>.

    Names have no part in the hash; where and how it executes has.
    """
    return f"-s{directory.name.rpartition('-s')[2]}"


def is_final_result(result: Result | None, config: Config) -> bool:
    """Return whether `result` is one of this configuration that has ended: done, or diverged."""
    return (
        result is not None
        and result.status in ENDED
        and not differences(result.config, config, BOOKKEEPING)
    )


def read_result_or_warn(path: Path) -> Result | None:
    """Return the result in a file; None where there is none, or none that can be read."""
    try:
        return read_run(path.parent).result
    except OSError:
        return None
    except ValueError as error:
        _warn_once(path, str(error))
        return None


@cache
def _warn_once(path: Path, problem: str) -> None:
    log.warning("not read: %s: %s", path, problem)
