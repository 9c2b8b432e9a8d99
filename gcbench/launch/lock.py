"""One process at a time runs in a directory: two would mix their records and checkpoints."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gcbench.config import RunFailed

PATIENCE_SECONDS = 3.0  # for the workers of a process that was killed, which share its lock and end a moment later

log = logging.getLogger("gcbench")


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Keeps other processes out meanwhile, and ends with this one, however it ends.

    Raises RunFailed where another process runs there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "run.lock"
    with path.open("a+b", buffering=0) as file:
        free = has_locks = True
        try:
            free = _lock(file)
        except OSError as error:
            has_locks = False
            log.warning("%s: %s; nothing keeps a second process from running there, too", path, error.strerror)
        if not free:
            file.seek(0)
            who = file.read().decode() or "another process"
            raise RunFailed(
                f"{directory} is being run by {who}; wait for it, stop it, or type another outputs=<folder>; if it is no more, "
                f"remove {path}"
            )
        with suppress(OSError):  # a full disk, which the first record of the run tells better
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            if has_locks:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing alone would leave it to workers that have not ended yet


def _lock(file: BinaryIO) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True
