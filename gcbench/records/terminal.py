"""Where commands print: a terminal, a file or a pipe."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDE = 1000  # columns of a file or a pipe, where nobody needs lines to be folded


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Go on in silence: a run does not end because `head -1` has read enough of it."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console(width: int = WIDE) -> Console:
    """Return a console on standard output, with as many columns as its terminal, or `width`."""
    found = _Output()
    return found if found.is_terminal else _Output(width=width)
