"""Which worker failed first, by the notes of all, and where each is when one waits too long."""

from __future__ import annotations

import json
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gcbench.core.deadline import within
from gcbench.core.errors import reason_of, safe_text
from gcbench.core.meeting import place_of_store, store
from gcbench.runner.records.files import replace_file

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


ASKS_SECONDS = 1.0  # between checks whether a process asks
# Time to wait for answers: a process that is stopped, or whose machine is down, gives none.
ANSWER_SECONDS = 5.0


class Place(NamedTuple):
    """The part of a step that a process is in."""

    waits: bool  # whether it waits for others
    text: str  # such as "in exchange of step 3"


class WorkerHangs(RuntimeError):
    """One or more processes did not take part in an exchange in time."""


@contextmanager
def watch(
    rank: int, processes: int, where: Callable[[], Place], timeout_seconds: float
) -> Iterator[None]:
    """Raise WorkerHangs, naming the missing processes, if a collective in this context times out.

    `where` returns the part of a step that this process is in.
    """
    board = store("watch")
    done = threading.Event()
    threading.Thread(target=_answer, args=(board, rank, where, done), daemon=True).start()
    try:
        yield
    except RuntimeError as error:
        if "Timed out waiting" not in str(error):  # gloo's message
            raise
        place = where()
        # A store behind a dead link would keep this process for a quarter of an hour.
        ask = partial(_ask, board, rank, place, processes)
        answers = within(ANSWER_SECONDS + ASKS_SECONDS, ask, None)
        raise WorkerHangs(
            f"waited {timeout_seconds:g} s {place.text}{_who_is_late(answers)}"
        ) from error
    finally:
        done.set()


def _answer(board: Any, rank: int, where: Callable[[], Place], done: threading.Event) -> None:
    with suppress(RuntimeError):  # the store is gone, as waiting processes notice
        while not done.wait(ASKS_SECONDS):
            if board.check(["asked"]):
                board.set(str(rank), json.dumps(where()))
                return


def _ask(board: Any, rank: int, place: Place, processes: int) -> list[Place | None] | None:
    """Return the place of every process that answers; None if the store is gone."""
    others = [str(other) for other in range(processes) if other != rank]
    end = time.monotonic() + ANSWER_SECONDS
    answers: list[Place | None] = [None] * processes
    answers[rank] = place
    try:
        board.set(str(rank), json.dumps(place))
        board.set("asked", "")
        while not board.check(others) and time.monotonic() < end:
            time.sleep(0.1)
        for key in others:
            if board.check([key]):
                answers[int(key)] = Place(*json.loads(board.get(key)))
    except RuntimeError:
        return None
    return answers


def _who_is_late(answers: list[Place | None] | None) -> str:
    if answers is None:
        return (
            f", and {place_of_store()}, where the others would say what they do, does not answer: "
            "that machine or the network may be down"
        )
    late = [
        f"worker process {rank}, which {f'is {place.text}' if place else 'does not answer'}"
        for rank, place in enumerate(answers)
        if place is None or not place.waits
    ]
    if not late:
        return ", where all processes wait: the network may be down"
    return f" for {' and '.join(late)}"
