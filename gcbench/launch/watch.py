"""A watch that says where every process is when one has waited too long for another."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gcbench.launch.meeting import store

ASKS_SECONDS = 1.0  # between looks for the question
# The time to answer; a process that is stopped, or whose machine is gone, gives no answer.
ANSWER_SECONDS = 5.0


class Place(NamedTuple):
    """The place in a step where a process is."""

    waits: bool  # for others
    text: str  # such as "in exchange of step 3"


class WorkerHangs(RuntimeError):
    """An exchange that one process or several did not come to in time."""


@contextmanager
def watch(
    rank: int, processes: int, where: Callable[[], Place], timeout_seconds: float
) -> Iterator[None]:
    """Name the processes that were missing when a collective in this context timed out.

    `where` says what this process is at.
    """
    board = store("watch")
    done = threading.Event()
    threading.Thread(target=_answer, args=(board, rank, where, done), daemon=True).start()
    try:
        yield
    except RuntimeError as error:
        if "Timed out waiting" not in str(error):  # gloo's words
            raise
        place = where()
        answers = _ask(board, processes)
        raise WorkerHangs(
            f"waited {timeout_seconds:g} s {place.text}{_who_is_late(answers)}"
        ) from error
    finally:
        done.set()


def _answer(board: Any, rank: int, where: Callable[[], Place], done: threading.Event) -> None:
    try:
        while not done.wait(ASKS_SECONDS):
            if board.check(["asked"]):
                board.set(str(rank), json.dumps(where()))
                return
    except RuntimeError:  # the process that holds the store is gone, which whoever waits sees
        return


def _ask(board: Any, processes: int) -> list[Place | None]:
    board.set("asked", "")
    end = time.monotonic() + ANSWER_SECONDS
    while not board.check([str(rank) for rank in range(processes)]) and time.monotonic() < end:
        time.sleep(0.1)
    keys = [str(rank) for rank in range(processes)]
    return [Place(*json.loads(board.get(key))) if board.check([key]) else None for key in keys]


def _who_is_late(answers: list[Place | None]) -> str:
    late = [
        f"worker process {rank}, which {f'is {place.text}' if place else 'does not answer'}"
        for rank, place in enumerate(answers)
        if place is None or not place.waits
    ]
    if not late:
        return ", where all processes wait: the network may be down"
    return f" for {' and '.join(late)}"
