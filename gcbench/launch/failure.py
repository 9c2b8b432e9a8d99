"""The worker that failed first, where srun or torchrun started them.

None of the workers is the parent of all then. A worker that fails leaves a note in the directory of
the run, which all share, before its end can reach the others.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

ECHO_SECONDS = 5.0  # how long a worker that has only lost another one waits for that one's note


class Failure(NamedTuple):
    """A worker's failure; the least of several is the cause."""

    is_echo: bool
    seconds: float  # of the clock
    rank: int
    reason: str


def failure_of(error: Exception, rank: int) -> Failure:
    """Return an error as a failure of this worker."""
    return Failure(is_echo(error), time.time(), rank, f"{type(error).__name__}: {error}")


def first_failure(error: Exception, rank: int, directory: Path) -> Failure:
    """Return the failure that ended the run, of which this worker knows `error`."""
    this_one = failure_of(error, rank)
    draft = directory / f"failure-{rank}.new"
    draft.unlink(missing_ok=True)  # a link there would lead to another file
    draft.touch(exist_ok=False)
    draft.write_text(json.dumps(this_one))
    draft.rename(directory / f"failure-{rank}.json")
    end = time.monotonic() + ECHO_SECONDS
    while (first := min(_notes(directory), default=this_one)).is_echo and time.monotonic() < end:
        time.sleep(0.05)
    return first


def forget_failures(directory: Path) -> None:
    """Remove the notes of an earlier run."""
    for path in directory.glob("failure-*.json"):
        path.unlink()


def is_echo(error: BaseException) -> bool:
    """Return whether an error only reports another worker's end."""
    return isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("by peer", "Broken pipe")
    )


def _notes(directory: Path) -> list[Failure]:
    return [Failure(*json.loads(path.read_text())) for path in directory.glob("failure-*.json")]
