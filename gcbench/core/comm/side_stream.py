"""Work beside the computation: in a thread, and on a GPU in a stream of its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class SideStream:
    """Runs what is submitted, one after the other in a thread.

    Exchanges there need their own process group: all processes issue the same collectives on it in
    the same order, so that no messages are mixed up.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begun = False
        self.close = weakref.finalize(self, self._waiting.put, None)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` after what the current stream of a GPU has been given so far."""
        if not self._begun:
            self._begun = True
            # A daemon, as a failing process must not wait for a collective that others never join.
            threading.Thread(
                target=_serve, args=(self._waiting, self._stream), name="exchange", daemon=True
            ).start()
        ready = torch.cuda.current_stream().record_event() if self._stream else None
        future: Future[T] = Future()
        self._waiting.put(partial(_run, work, future, self._stream, ready))
        return future

    def result(self, future: Future[T]) -> T:
        """Wait for work, and return its result, which the current stream of a GPU may then use.

        Errors of the work are raised here.
        """
        result = future.result()
        if self._stream:
            torch.cuda.current_stream().wait_stream(self._stream)
        return result


def _run(
    work: Callable[[], T],
    future: Future[T],
    stream: torch.cuda.Stream | None,
    ready: torch.cuda.Event | None,
) -> None:
    if stream and ready:
        stream.wait_event(ready)
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


def _serve(
    waiting: SimpleQueue[Callable[[], Any] | None], stream: torch.cuda.Stream | None
) -> None:
    with torch.cuda.stream(stream) if stream else nullcontext():
        while run := waiting.get():
            run()
            del run  # so that nothing is kept alive while it waits
