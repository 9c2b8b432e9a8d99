"""A deadline for calls that may never return, and for the end of a process, which takes seconds."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import NoReturn, TypeVar

PARENT = "GCBENCH_PARENT"  # the number of the command that started this one, with which it ends
LOOK_SECONDS = 0.2  # between looks for the parent
ORPHAN_SECONDS = 20.0  # for a process whose parent was killed
Value = TypeVar("Value")
_IMPORTED_BY = os.getpid()


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


def end_with(parent: int) -> None:
    """Ask this process to stop once `parent` is gone, and end it if it does not stop."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_process(status: int) -> NoReturn:
    """End this process; unlike Python, do not free all modules first: of torch's it takes 1 s."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    if os.getpid() == _IMPORTED_BY:  # a fork has its parent's, which would remove what that needs
        atexit._run_exitfuncs()
    os._exit(status)
