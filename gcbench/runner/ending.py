"""The end of a process: with the command that started it, and without the seconds that it takes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

PARENT = "GCBENCH_PARENT"  # the number of the command that started this one, with which it ends
LOOK_SECONDS = 0.2  # between looks for the parent
ORPHAN_SECONDS = 20.0  # for a process whose parent was killed
_IMPORTED_BY = os.getpid()


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
