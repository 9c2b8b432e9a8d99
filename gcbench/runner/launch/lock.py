"""Locks that keep two runs out of one directory, and a run's temporary folder on this machine."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NamedTuple

from gcbench.core.errors import ConfigError
from gcbench.core.private import refuse_open_parents
from gcbench.runner.config.errors import RunFailed

PATIENCE_SECONDS = 3.0  # to wait for a run that is just ending
ORPHAN_SECONDS = 30.0  # to wait for workers of a killed parent to write a checkpoint

log = logging.getLogger("gcbench")


class NoLocks(OSError):
    """The file system does not support locks."""


class Lock:
    """A lock on a file, held until the last of the processes that share it has ended.

    Only its holder may remove the file.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.path = path
        self._descriptor = _open(path) if descriptor is None else descriptor

    def __reduce__(self) -> tuple[Callable[..., Lock], tuple[Any, ...]]:
        return _rebuild, (self.path, DupFd(self._descriptor))

    def take(self) -> bool:
        """Take the lock; return whether it was free.

        Raises NoLocks if the file system does not support them.
        """
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError as error:
                raise NoLocks(error.errno, error.strerror) from error
            if self._is_there():
                return True
            # Its holder has removed the file. Others would lock the next one of that name.
            self.path.parent.mkdir(parents=True, exist_ok=True)
            orphan, self._descriptor = self._descriptor, _open(self.path)
            os.close(orphan)

    def _is_there(self) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        return False

    def release(self) -> None:
        """Release the lock in all processes that share it, even if a worker is still ending."""
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)

    def note(self, text: str) -> None:
        with suppress(OSError):  # a full disk, which writing the first record reports better
            os.truncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode(), 0)

    def read_note(self) -> str:
        return os.pread(self._descriptor, 1000, 0).decode(errors="replace")


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _rebuild(path: Path, descriptor: Any) -> Lock:
    return Lock(path, descriptor.detach())


@contextmanager
def lock_directory(directory: Path) -> Iterator[Lock]:
    """Hold the lock of a directory, so that no other run can use it.

    If this process is killed, it stays held until all processes that share the lock have ended.
    Raises RunFailed if another process runs there.
    """
    made = [one for one in (directory, *directory.parents) if not one.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "run.lock"
    lock = Lock(path)
    try:
        if not _take(lock):
            who = lock.read_note() or "another process"
            raise RunFailed(
                f"{directory} is being run by {who}; wait for it, stop it, or type another "
                f"outputs=<folder>; if that process no longer exists, remove {path}"
            )
        lock.note(f"process {os.getpid()} on {socket.gethostname()}")
        yield lock
    except ConfigError:  # refused before it has written anything
        if {file.name for file in directory.iterdir()} <= {path.name, ".hydra"}:
            path.unlink()
        with suppress(OSError):  # something else is there
            for folder in made:
                folder.rmdir()
        raise
    finally:
        lock.release()


@contextmanager
def held(directory: Path) -> Iterator[str]:
    """Hold the lock of a run that has ended, and yield an empty text; else who holds it.

    A run on a file system without locks counts as ended if its process has, on this machine.
    """
    path = directory / "run.lock"
    if not path.exists():  # an older gcbench had none, and a copy has none
        yield ""
        return
    lock = Lock(path)
    try:
        free = lock.take()
    except NoLocks:
        free = not (directory / "start.json").exists() or (directory / "result.json").exists()
        free = free or _is_gone(lock.read_note())
    try:
        yield "" if free else lock.read_note() or "another process"
    finally:
        lock.release()


def _take(lock: Lock) -> bool:
    try:
        if _take_within(lock, PATIENCE_SECONDS):
            return True
        if not _is_gone(lock.read_note()):
            return False
        log.warning(
            "%s was killed; waiting for its workers, which leave a checkpoint", lock.read_note()
        )
        return _take_within(lock, ORPHAN_SECONDS)
    except NoLocks as error:
        log.warning(
            "%s: %s; without this lock a second process could run there, too",
            lock.path,
            error.strerror,
        )
        return True


def _take_within(lock: Lock, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not lock.take():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _is_gone(who: str) -> bool:
    """Return whether the process that left the note `who` has ended on this machine."""
    holder = re.fullmatch(r"process (\d+) on (.*)", who)
    if holder is None or holder[2] != socket.gethostname():
        return False
    return not Path(f"/proc/{holder[1]}").exists()


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
