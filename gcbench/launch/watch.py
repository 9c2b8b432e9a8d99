"""A watch that reports where every process is when one has waited too long for others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from gcbench.deadline import within
from gcbench.launch.meeting import place_of_store, store

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
