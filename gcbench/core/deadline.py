"""A deadline for calls that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Value = TypeVar("Value")


def within(seconds: float | None, call: Callable[[], Value], otherwise: Value) -> Value:
    """Return what `call` returns, or raise what it raises; after `seconds`, return `otherwise`.

    A call that takes longer goes on in a thread that does not keep the process from ending. TCP,
    for example, gives up on a dead link only after a quarter of an hour.
    """
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    wait([future], seconds)
    return future.result() if future.done() else otherwise
