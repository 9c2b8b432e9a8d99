"""The temporary folder of a run on this machine: private, and removed however the run ended."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gcbench.config import ConfigError
from gcbench.launch.lock import Lock
from gcbench.private import refuse_open_parents

PREFIX = "gcbench-run-"
LOCK = "lock"


class Temporary(NamedTuple):
    path: Path
    lock: Lock  # held as long as any process needs the folder


@contextmanager
def temporary_folder() -> Iterator[Temporary]:
    """Make a private folder and remove it afterwards.

    Folders that killed runs of this user have left behind are removed, too. Raises ConfigError if
    others could put another folder in its place.
    """
    place = Path(tempfile.gettempdir())
    try:
        refuse_open_parents(place / PREFIX, "TMPDIR")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for left in place.glob(f"{PREFIX}*"):
        _remove_if_left(left)
    path = Path(tempfile.mkdtemp(prefix=PREFIX))  # with mode 0700
    draft = path / f"{LOCK}.new"
    lock = Lock(draft)
    lock.take()
    draft.rename(path / LOCK)  # so that nobody ever finds the file unlocked before the end
    try:
        yield Temporary(path, lock)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        lock.release()


def _remove_if_left(path: Path) -> None:
    with suppress(OSError):  # another user's, or just removed by another run
        if path.lstat().st_uid != os.getuid() or not (path / LOCK).exists():
            return
        lock = Lock(path / LOCK)
        if lock.take():
            shutil.rmtree(path, ignore_errors=True)
        lock.release()
