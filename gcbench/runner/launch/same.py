"""Find the same run under another name, so that a sweep does not repeat what tables share."""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path

from gcbench.runner.differences import differences
from gcbench.runner.identity import BOOKKEEPING
from gcbench.runner.records.files import ENDED
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import read_run
from gcbench.runner.settings.config import RunConfig

log = logging.getLogger("gcbench")


def find_same_run(config: RunConfig, directory: Path) -> Path | None:
    """Return the directory of an ended run that is this one under another name, or None.

    The search covers directories below `outputs` that have the same name suffix as `directory`.
    """
    for path in sorted(Path(config.outputs).rglob(f"*{name_suffix(directory)}/result.json")):
        result = read_result_or_warn(path)
        if result is None or path.parent.resolve() == directory.resolve():
            continue
        if ran_on_another_link(result):
            continue
        same_budget = result.choices["budget"] == config.choices["budget"]
        if same_budget and is_final_result(result, config):
            return path.parent
    return None


def name_suffix(directory: Path) -> str:
    """Return the end of a directory's name: -s<seed>-<hash of the configuration>.

    The hash ignores names, but not where and how the run executes.
    """
    return f"-s{directory.name.rpartition('-s')[2]}"


def is_final_result(result: Result | None, config: RunConfig) -> bool:
    """Return whether `result` is of this configuration and final: done or diverged."""
    return (
        result is not None
        and result.status in ENDED
        and not differences(result.config, config.as_dict(), BOOKKEEPING)
    )


def ran_on_another_link(result: Result) -> bool:
    """Return whether the result has times on another link of netlab than this process is on."""
    link = result.network.link if result.network else None
    return result.seconds is not None and link != os.environ.get("GCBENCH_LINK")


def read_result_or_warn(path: Path) -> Result | None:
    """Return the result in a file; None if there is none or, with a warning, if it is damaged."""
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
