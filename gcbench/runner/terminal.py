"""A terminal that may be closed while a run goes on."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _Terminal:
    """A stream to a terminal that goes nowhere once the terminal has been closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._maybe_closed():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._maybe_closed():
            self._stream.flush()

    @contextmanager
    def _maybe_closed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def outlive_terminal() -> None:
    """Let this process print nothing, rather than fail, once its terminal has been closed.

    SIGHUP comes then, after which a run has to write its checkpoint and its result.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            setattr(sys, name, _Terminal(stream))
