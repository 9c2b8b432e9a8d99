"""Writes that fail in all processes if they fail in one, with the cause and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gcbench.runner.records.files import FULL
from gcbench.runner.train.run import Run

T = TypeVar("T")


class CheckpointError(ValueError):
    """A checkpoint cannot be written, read or continued; the message says why."""


def write_in_all(run: Run, path: Path, before: Path | None, write: Callable[[], T]) -> list[T]:
    """Run `write` in every process and return all results.

    If it raises OSError in one, all raise CheckpointError: `path` could not be written. `before` is
    the last checkpoint, from which the run can continue then.
    """
    outcome: tuple[T | None, int | None, str]
    try:
        outcome = (write(), None, "")
    except OSError as error:
        number = error.errno or 0
        outcome = (None, number, os.strerror(number) if number else str(error))
    outcomes = run.control.gather(outcome)
    for _, number, cause in outcomes:
        if number is not None:
            whole, there = (f"{before} is whole; ", " to continue there") if before else ("", "")
            remedy = "make room, and" if number in FULL else "once it can be written,"
            raise CheckpointError(
                f"{path} could not be written ({cause}); {whole}{remedy} type the same "
                f"command{there}"
            )
    return [returned for returned, _, _ in outcomes]
