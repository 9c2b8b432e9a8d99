"""Work beside the user's loop: in a thread and, on a GPU, in a side stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext

import torch

from gcbench.compressors import Grads


class Background:
    """At most one exchange that is under way."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._under_way: tuple[Future[Grads], Callable[[], Grads]] | None = None

    def begin(self, work: Callable[[], Grads]) -> None:
        """Start to do `work`, after what the current stream has been told so far."""
        future: Future[Grads] = Future()
        ready = torch.cuda.current_stream().record_event() if self._stream else None

        def run() -> None:
            try:
                with torch.cuda.stream(self._stream) if self._stream else nullcontext():
                    if self._stream and ready:
                        self._stream.wait_event(ready)
                    future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        # The work and its tensors are kept until the current stream has waited for the side stream.
        self._under_way = future, work
        # A daemon, as a failing process must not wait for a collective that others never join.
        threading.Thread(target=run, name="exchange", daemon=True).start()

    def result(self) -> Grads | None:
        """Wait for what was begun and return its result, or None if there is nothing."""
        if self._under_way is None:
            return None
        future, _ = self._under_way
        update = future.result()
        if self._stream:
            current = torch.cuda.current_stream()
            current.wait_stream(self._stream)
            for x in update.values():
                x.record_stream(current)
        self._under_way = None
        return update
