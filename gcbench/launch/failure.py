"""Notes that failing workers leave in a folder, and the one of them that failed first."""

from __future__ import annotations

import json
import signal
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from gcbench.records.files import replace_file

ECHO_SECONDS = 5.0  # how long a worker that has only lost another one waits for that one's note


class Failure(NamedTuple):
    """A worker's failure; the smallest of several is the one that caused the others."""

    is_echo: bool
    nanoseconds: int  # of the clock, as machines may be several
    rank: int
    reason: str
    traceback_text: str = ""  # of a worker that could say one


def failure_of(error: BaseException, rank: int) -> Failure:
    """Return an error as a failure of this worker, its traceback without the caller's line."""
    frames = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    reason = f"{type(error).__name__}: {error}"
    return Failure(is_echo(error), time.time_ns(), rank, reason, text)


def describe_exit(exitcode: int) -> str:
    """Return how a process ended, of which Python says the signal as a negative number."""
    return (
        f"killed by {signal.Signals(-exitcode).name}" if exitcode < 0 else f"exit code {exitcode}"
    )


def is_echo(error: BaseException) -> bool:
    """Return whether an error only reports another worker's end."""
    return isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("by peer", "Broken pipe")
    )


def leave_note(failure: Failure, folder: Path) -> None:
    """Write a failure into a folder that all workers see."""
    replace_file(folder / f"failure-{failure.rank}.json", json.dumps(failure).encode())


def read_notes(folder: Path) -> list[Failure]:
    """Return the failures of a folder."""
    return [Failure(*json.loads(path.read_text())) for path in folder.glob("failure-*.json")]


def forget_notes(folder: Path) -> None:
    """Remove the notes of an earlier run."""
    for path in folder.glob("failure-*.json"):
        path.unlink()


def first_failure(error: Exception, rank: int, directory: Path) -> Failure:
    """Return the failure that ended the run, of which this worker knows `error`.

    Where srun or torchrun started the workers, none is the parent of all. Each that fails leaves a
    note in the directory of the run, which all share, before its end can reach the others.
    """
    this_one = failure_of(error, rank)
    leave_note(this_one, directory)
    end = time.monotonic() + ECHO_SECONDS
    while (first := min(read_notes(directory), default=this_one)).is_echo:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return first
