"""Processes that need no time for imports: copies of a server that has made them.

Each test process has one server. Importing torch, scikit-learn and torch's compiler (with the first
optimizer) would take seconds of one core, for a command and again for each of its workers.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from gcbench.runner.launch import local

SUPPORT = str(Path(__file__).parent)


@cache
def server() -> ForkServerContext:
    """Start the server, and return the context whose processes are copies of it.

    The server needs this folder on its path: otherwise it would silently preload nothing.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    with patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join([SUPPORT, *sys.path])}):
        forkserver.ensure_running()
    return context


class Copy:
    """A copy of the server that calls `target(*args)` in a session of its own.

    Local workers that it starts are copies of it. Leaving the context kills the session.
    """

    def __init__(
        self,
        target: Callable[..., None],
        *args: Any,
        folder: Path,
        environment: Mapping[str, str] = os.environ,
        read: bool = True,
    ) -> None:
        """Start the process; without `read` it prints to a pipe that nobody reads."""
        self._args = args
        self._place = tempfile.TemporaryDirectory()
        self._out, self._err = (Path(self._place.name, name) for name in ("out", "err"))
        self._err.touch()
        if read:
            self._out.touch()
        self._process = server().Process(
            target=_begin,
            args=(target, args, folder, dict(environment), self._out if read else None, self._err),
        )
        self._process.start()

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *error: object) -> None:
        if self.returncode is None:
            self._process.kill()
            self._process.join()
        with contextlib.suppress(ProcessLookupError):  # no process of its session is left
            os.killpg(self.pid, signal.SIGKILL)
        self._place.cleanup()

    @property
    def pid(self) -> int:
        """Return the id of the process, which is also that of its group."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    @property
    def stdout(self) -> str:
        """Return what the process has printed so far."""
        return self._out.read_text() if self._out.exists() else ""

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def stacks(self) -> str:
        """Return what it printed to stderr, with where its threads are if it still runs."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGUSR1)
            self._process.join(1)  # a moment to print them
        return self.stderr

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the process to end, and return all that it printed."""
        ended = self.wait(timeout)
        return ended.stdout, ended.stderr

    def wait(self, timeout: float) -> subprocess.CompletedProcess[str]:
        self._process.join(timeout)
        assert self.returncode is not None, f"it still runs after {timeout} s: {self.stacks()}"
        return subprocess.CompletedProcess(self._args, self.returncode, self.stdout, self.stderr)


def command(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout: float,
    read: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `gcbench` in a copy of the server, as the installed script does."""
    with Copy(gcbench, *arguments, folder=folder, environment=environment, read=read) as copy:
        return copy.wait(timeout)


def new_command(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `gcbench` in a new process, whose workers are new ones, too: no copy can use a GPU that
    the copied process uses.
    """
    return subprocess.run(
        [sys.executable, "-m", "gcbench", *arguments],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def under_torchrun(
    target: Callable[..., None],
    *args_of_ranks: Sequence[str],
    folder: Path,
    timeout: float,
    environment: Mapping[str, str] = os.environ,
) -> list[subprocess.CompletedProcess[str]]:
    """Run one copy per rank with the variables that torchrun sets; return how each ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        **environment,
        "WORLD_SIZE": str(len(args_of_ranks)),
        "LOCAL_WORLD_SIZE": str(len(args_of_ranks)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    with contextlib.ExitStack() as stack:
        copies = []
        for rank, args in enumerate(args_of_ranks):
            of_rank = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            copy = Copy(target, *args, folder=folder, environment=of_rank)
            copies.append(stack.enter_context(copy))
        try:
            return [copy.wait(timeout) for copy in copies]
        except AssertionError:
            ranks = (f"rank {rank}: {copy.stacks()}" for rank, copy in enumerate(copies))
            late = f"a rank still runs after {timeout} s"
            raise AssertionError("\n".join((late, *ranks))) from None


def gcbench(*arguments: str) -> None:
    """Run what the installed script runs."""
    sys.argv = ["gcbench", *arguments]
    from gcbench.__main__ import main

    main()


def script(path: str) -> None:
    """Run a file as `python FILE` does, on one core.

    On busy cores, threads spend their time waiting for each other.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ.get("RANK", "0")) % len(cores)]})
    torch.set_num_threads(1)
    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")


def code(text: str) -> None:
    """Run lines as `python -c` does."""
    exec(text, {"__name__": "__main__"})


def _begin(
    target: Callable[..., None],
    args: Sequence[Any],
    folder: Path,
    environment: dict[str, str],
    out: Path | None,
    err: Path,
) -> None:
    assert "preloaded" in sys.modules, "the server has not imported what its copies need"
    os.setsid()
    unread, written = os.pipe()
    os.dup2(written, 1)
    os.close(unread)  # as `| head -1` does
    for file, number in ((out, 1), (err, 2)):
        if file is not None:
            os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it was set from the server's TMPDIR
    faulthandler.register(signal.SIGUSR1)
    local._PROCESSES = multiprocessing.get_context("fork")
    target(*args)
