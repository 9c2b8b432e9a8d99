"""Where every process is when one of them has waited too long for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gcbench.launch.meeting import store

ASKS_SECONDS = 1.0  # between looks for the question
ANSWER_SECONDS = 5.0  # that a process has for its answer; one that is stopped, or whose machine is gone, gives none


class WorkerHangs(RuntimeError):
    """An exchange that one process or several did not come to in time."""


@contextmanager
def watching(rank: int, processes: int, where: Callable[[], str], timeout_seconds: float) -> Iterator[None]:
    """Names who was not there when a collective inside has timed out; `where` says what this process is at."""
    board = store("watch")
    done = threading.Event()
    threading.Thread(target=_answer, args=(board, rank, where, done), daemon=True).start()
    try:
        yield
    except RuntimeError as error:
        if "Timed out waiting" not in str(error):  # gloo's words
            raise
        here = where()
        answers = _ask(board, processes)
        raise WorkerHangs(f"waited {timeout_seconds:g} s {here}{_who_is_late(answers)}") from error
    finally:
        done.set()


def _answer(board: Any, rank: int, where: Callable[[], str], done: threading.Event) -> None:
    try:
        while not done.wait(ASKS_SECONDS):
            if board.check(["asked"]):
                board.set(str(rank), where())
                return
    except RuntimeError:  # the process that holds the store is gone, and whoever waits for it hears that
        return


def _ask(board: Any, processes: int) -> list[str | None]:
    board.set("asked", "")
    end = time.monotonic() + ANSWER_SECONDS
    while not board.check([str(rank) for rank in range(processes)]) and time.monotonic() < end:
        time.sleep(0.1)
    return [board.get(str(rank)).decode() if board.check([str(rank)]) else None for rank in range(processes)]


def _who_is_late(answers: list[str | None]) -> str:
    late = [
        f"worker process {rank}, which {'is ' + answer if answer else 'does not answer'}"
        for rank, answer in enumerate(answers)
        if answer is None or not answer.startswith("in exchange")
    ]
    return f" for {' and '.join(late)}" if late else ", where all processes are: the network may be down"
