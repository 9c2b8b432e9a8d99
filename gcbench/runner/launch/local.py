"""Worker processes on this machine: when one dies, all are ended, and none is left behind.

They accept connections from this machine only.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rich.status import Status

from gcbench.core.meeting import MEETING_FILE
from gcbench.runner.console import spinner
from gcbench.runner.ending import end_process, end_with
from gcbench.runner.launch import slurm
from gcbench.runner.launch.failure import Failure, describe_exit, failure_of, leave_note, read_notes
from gcbench.runner.launch.lock import Lock, temporary_folder
from gcbench.runner.terminal import outlive_terminal

log = logging.getLogger("gcbench")

STOP_SECONDS = 600.0  # from SIGTERM to the kill: a test may have to end first
FOLLOW_SECONDS = 5.0  # for workers to end by themselves when one of them has failed
LOOK_SECONDS = 0.2  # between checks for a signal
# GNU's OpenMP, as in PyTorch's wheels, lets threads spin so often before they sleep. By default it
# is 300 times as often, which on a busy machine takes many times the CPU time of a step.
SPINNING = ("GOMP_SPINCOUNT", "1000")  # read when torch loads
BEGUN = "begun"  # the file that says that the first worker shows its progress
_PROCESSES: Any = multiprocessing.get_context("spawn")


class WorkerFailed(Exception):
    """The worker that failed first, why, and its own traceback ("" if it died without one)."""

    def __init__(self, rank: int, traceback_text: str, reason: str) -> None:
        super().__init__(f"worker process {rank} failed: {reason}")
        self.rank = rank
        self.traceback_text = traceback_text
        self.reason = reason


class Interrupted(Exception):
    """A signal stopped the run, and every worker has ended."""

    def __init__(self, signal_name: str) -> None:
        super().__init__(f"interrupted by {signal_name}")
        self.signal_name = signal_name


class _Place(NamedTuple):
    """A worker's place in the run, passed to it at its start."""

    rank: int
    processes: int
    attempt: int
    notes: Path  # folder of this attempt, which only this user can read
    parent: int
    locks: tuple[Lock, ...]  # held as long as any process of the run lives


def run_processes(
    target: Callable[..., None],
    args: tuple[Any, ...],
    processes: int,
    max_restarts: int = 0,
    lock: Lock | None = None,
) -> None:
    """Run `target(*args)` in `processes` processes.

    They find RANK and WORLD_SIZE in the environment, and each other through `meeting.join`.

    When one dies, all are ended and started again, up to `max_restarts` times; `meeting.restarts()`
    tells the target how often. Raises WorkerFailed when the last attempt fails. On a stop signal
    every worker gets SIGTERM and STOP_SECONDS to return, or until a second Ctrl-C; then Interrupted
    is raised. `lock` stays held until the last worker has ended.
    """
    with temporary_folder() as folder, collect_signals() as received:
        locks = (folder.lock, lock) if lock else (folder.lock,)
        for attempt in range(max_restarts + 1):
            notes = folder.path / f"attempt-{attempt}"
            notes.mkdir()
            places = [
                _Place(rank, processes, attempt, notes, os.getpid(), locks)
                for rank in range(processes)
            ]
            failure = _run_once(target, args, places, received)
            if received:
                raise Interrupted(received[0])
            if failure is None:
                return
            if attempt == max_restarts:
                raise failure


def _run_once(
    target: Callable[..., None],
    args: tuple[Any, ...],
    places: Sequence[_Place],
    received: Sequence[str],
) -> WorkerFailed | None:
    workers = [_PROCESSES.Process(target=_work, args=(target, args, place)) for place in places]
    os.environ.setdefault(*SPINNING)
    try:
        with _block_sigint(), _hide_main():
            for worker in workers:
                worker.start()
        died_alone = _await(workers, received, places[0].notes / BEGUN)
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.kill()
                worker.join()
    return _first_failure(workers, died_alone, places[0])


def tell_begun() -> None:
    """Let the parent end its spinner on a terminal before more is shown."""
    if meeting := os.environ.get(MEETING_FILE):
        Path(meeting).with_name(BEGUN).touch()
        if sys.stderr.isatty():
            time.sleep(2 * LOOK_SECONDS)


def _await(workers: Sequence[Any], received: Sequence[str], begun: Path) -> dict[int, int]:
    """Wait for all workers; return, by rank, the time in ns at which each ended by itself."""
    with spinner(f"starting {len(workers)} processes") as starting:
        return _watch(workers, received, begun, starting)


def _watch(
    workers: Sequence[Any], received: Sequence[str], begun: Path, starting: Status
) -> dict[int, int]:
    living = dict(enumerate(workers))
    died_alone: dict[int, int] = {}
    kill_at = math.inf
    asked = False
    while living:
        connection.wait([worker.sentinel for worker in living.values()], LOOK_SECONDS)
        if begun.exists():
            starting.stop()
        for rank in [rank for rank, worker in living.items() if worker.exitcode is not None]:
            died_alone[rank] = time.time_ns()
            if living.pop(rank).exitcode:
                kill_at = min(kill_at, time.monotonic() + FOLLOW_SECONDS)
        if received and not asked:
            asked, kill_at = True, time.monotonic() + STOP_SECONDS
            for worker in living.values():
                worker.terminate()
            log.info("stopping after this step or test; Ctrl-C twice stops without a checkpoint")
        if time.monotonic() > kill_at or received.count("SIGINT") > 1:
            break
    return died_alone


def _first_failure(
    workers: Sequence[Any], died_alone: dict[int, int], place: _Place
) -> WorkerFailed | None:
    failures = read_notes(place.notes)
    ended_well = {int(path.suffix[1:]) for path in place.notes.glob("returned.*")}
    silent = died_alone.keys() - ended_well - {failure.rank for failure in failures}
    failures += [
        Failure(False, died_alone[rank], rank, describe_exit(workers[rank].exitcode))
        for rank in silent
    ]
    if not failures:
        return None
    first = min(failures)
    return WorkerFailed(first.rank, first.traceback_text, first.reason)


def _work(target: Callable[..., None], args: tuple[Any, ...], place: _Place) -> None:
    """Run the target as a worker process."""
    outlive_terminal()
    os.environ.update(_environment(place))
    end_with(place.parent)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        target(*args)
    except BaseException as error:  # SystemExit in the target is a failure, too
        leave_note(failure_of(error, place.rank), place.notes)
        sys.stdout.flush()
        sys.stderr.flush()
        # Exit at once: gloo's threads, whose peers are gone, would end the interpreter by SIGABRT.
        os._exit(1)
    (place.notes / f"returned.{place.rank}").touch()
    end_process(0)


def _environment(place: _Place) -> dict[str, str]:
    """Return torchrun's variables, and those that restrict sockets to this machine."""
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.rank),
        "WORLD_SIZE": str(place.processes),
        "LOCAL_WORLD_SIZE": str(place.processes),
        "TORCHELASTIC_RESTART_COUNT": str(place.attempt),
        MEETING_FILE: str(place.notes / "meeting"),
        "GLOO_SOCKET_IFNAME": _loopback(),
        "NCCL_SOCKET_IFNAME": _loopback(),
    }


def _loopback() -> str:
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), "lo")


@contextmanager
def collect_signals() -> Iterator[list[str]]:
    """Yield a list that collects the names of stop signals as they arrive.

    Outside the main thread it stays empty, as only that one may handle signals.
    """
    received: list[str] = []
    in_main = threading.current_thread() is threading.main_thread()

    def note(number: int, _frame: object) -> None:
        received.append(signal.Signals(number).name)

    numbers = slurm.stop_signals(os.environ) if in_main else ()
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _hide_main() -> Iterator[None]:
    """Keep workers from running the user's script again, as spawned processes normally do.

    They need nothing from it, and a script that calls `gcbench.run` would start workers in workers.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _block_sigint() -> Iterator[None]:
    """Block SIGINT in processes that are started in this context.

    They unblock it in `_work`: earlier, Ctrl-C would print a traceback of their imports.
    """
    resource_tracker.ensure_running()  # its start unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
