"""Results of an older gcbench, some of whose numbers would be others today: conf/changes.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cache
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from gcbench.core.conf import conf_directory, read_yaml
from gcbench.runner.conf_files import build_checked
from gcbench.runner.identity import leaves
from gcbench.runner.records.schema import Result

Lines = list[dict[str, Any]]  # of metrics.jsonl


class Change(BaseModel):
    """A change after which some configurations give other numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    commit: str
    date: datetime
    where: list[dict[str, bool | str | list[str]]]
    error_only: bool = False  # whether only the compression error is another
    text: str

    def covers(self, flat: Mapping[str, Any]) -> bool:
        return any(
            all(_has(flat, key, wanted) for key, wanted in one.items()) for one in self.where
        )


def _has(flat: Mapping[str, Any], key: str, wanted: bool | str | list[str]) -> bool:
    names = [key] if "*" not in key else [name for name in flat if fnmatchcase(name, key)]
    values = [flat[name] for name in names if flat.get(name)]
    if isinstance(wanted, bool):
        return bool(values) is wanted
    patterns = [wanted] if isinstance(wanted, str) else wanted
    return any(fnmatchcase(str(value), pattern) for value in values for pattern in patterns)


@cache
def read_changes() -> list[Change]:
    """Return all changes. Raises ConfigError if an entry is invalid."""
    path = conf_directory() / "changes.yaml"
    return [build_checked(Change, node, path) for node in read_yaml(path)]


def changes_since(result: Result, error_only: bool) -> list[Change]:
    """Return the changes that this result's commit did not have: of its scores, or of its error."""
    made = datetime.fromisoformat((result.git and result.git.date) or result.started)
    changes = [change for change in read_changes() if change.error_only is error_only]
    later = [change for change in changes if made < change.date]
    flat = leaves(result.config) if later else {}
    return [change for change in later if change.covers(flat)]


def renew_error(
    result: Result, read_metrics: Callable[[], Lines]
) -> tuple[Result, Callable[[], Lines]]:
    """Return a result and its curves with the compression error that a run has today, or none.

    An older result has no `vnmse`, which follows from its samples. Errors that would be others are
    left out, as nothing that was kept says what they would be.
    """
    error = result.compression_error
    if error is None:
        return result, read_metrics
    if _has_other_error(result):
        return result.model_copy(update={"compression_error": None}), lambda: [
            {k: v for k, v in line.items() if k not in ("relative", "cosine")}
            for line in read_metrics()
        ]
    if "vnmse" in error.model_fields_set:
        return result, read_metrics
    values = [line.get("relative") for line in read_metrics()]
    squares = [value**2 for value in values if isinstance(value, int | float)]
    vnmse = fmean(squares) if len(squares) == error.samples else None
    renewed = error.model_copy(update={"vnmse": vnmse})
    return result.model_copy(update={"compression_error": renewed}), read_metrics


def lost_error(result: Result) -> bool:
    """Return whether `renew_error` has left out the error of this result."""
    sampled = result.status == "done" and result.config["trainer"].get("error_every") is not None
    return sampled and result.compression_error is None and _has_other_error(result)


def _has_other_error(result: Result) -> bool:
    return bool(changes_since(result, error_only=True))
