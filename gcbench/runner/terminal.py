"""A terminal: text folded to its width, and what outlives its end."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, TextIO

COLUMN = 24  # at which descriptions of --help begin


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


def fold(text: str) -> str:
    """Return text with its lines folded to the terminal, under their second column if there is one.

    80 columns where nothing tells the width.
    """
    width = max(40, get_terminal_size((80, 24)).columns)
    lines = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        column = re.match(r" *\S+( \S+)*? {2,}(?=\S)", line)
        inner = min(len(column[0]) if column else indent + 4 * (indent > 0), COLUMN + 4)
        if len(line) <= width:
            lines.append(line)
            continue
        first, rest = (
            (column[0], line[len(column[0]) :]) if column else (" " * indent, line.strip())
        )
        if len(first) > inner:  # a long key has a line of its own
            lines += wrap(first.rstrip(), width, subsequent_indent=" " * indent)
            first = " " * inner
        lines += wrap(
            rest,
            width,
            initial_indent=first,
            subsequent_indent=" " * inner,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
