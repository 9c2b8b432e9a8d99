"""Notes that failing workers leave in a folder, which tell which of them failed first."""

from __future__ import annotations

import json
import signal
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gcbench.reasons import reason_of, safe_text
from gcbench.records.files import replace_file

ECHO_SECONDS = 5.0  # how long a worker that has only lost a peer waits for the peer's note
LONGEST_TRACEBACK = 20_000  # characters
SILENT = "it was killed, or its machine is down: it left no message in the run's directory"


class Failure(NamedTuple):
    """A worker's failure; the smallest of several is the one that caused the others."""

    is_echo: bool
    nanoseconds: int  # wall-clock time, as workers may be on several machines
    rank: int
    reason: str
    traceback_text: str = ""  # empty if the worker died without one


def failure_of(error: BaseException, rank: int) -> Failure:
    """Return an error as a failure of worker `rank`, its traceback without the caller's frame."""
    frames = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    text = safe_text(text, LONGEST_TRACEBACK)
    return Failure(is_echo(error), time.time_ns(), rank, reason_of(error), text)


def describe_exit(exitcode: int) -> str:
    """Return how a process ended, in words; a negative exit code is minus a signal number."""
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:  # most real-time signals have no name
        name = f"signal {-exitcode}"
    return f"killed by {name}"


def is_echo(error: BaseException) -> bool:
    """Return whether an error only reports that another worker has ended."""
    return isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("by peer", "Broken pipe")
    )


def leave_note(failure: Failure, folder: Path) -> None:
    """Write a failure into a folder that all workers see."""
    replace_file(folder / f"failure-{failure.rank}.json", json.dumps(failure).encode())


def read_notes(folder: Path) -> list[Failure]:
    """Return the failures noted in a folder."""
    return [Failure(*json.loads(path.read_text())) for path in folder.glob("failure-*.json")]


def forget_notes(folder: Path) -> None:
    """Remove the notes of an earlier run."""
    for path in folder.glob("failure-*.json"):
        path.unlink()


def first_failure(here: Failure, processes: int, directory: Path) -> tuple[Failure, bool]:
    """Return the failure that ended the run, and whether this worker is to record it.

    `here` is what this worker has seen of it. If srun or torchrun started the workers, none is the
    parent of all. So each worker that fails leaves a note in the shared directory of the run before
    the others can notice its end. If only one has left none, it was that one that ended first.
    """
    with suppress(OSError):  # such as a full disk, which must not hide the failure itself
        leave_note(here, directory)
    end = time.monotonic() + ECHO_SECONDS
    while (first := min(notes := read_notes(directory), default=here)).is_echo:
        if time.monotonic() > end:
            living = {note.rank for note in notes}
            silent = set(range(processes)) - living
            if living and len(silent) == 1:
                found = Failure(False, first.nanoseconds, silent.pop(), SILENT)
                return found, here.rank == min(living)
            break
        time.sleep(0.05)
    return first, here.rank == first.rank
