"""Worker processes on this machine, through torch's elastic launcher: one death ends all, none is left."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children, parent_process, resource_tracker
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gcbench.launch.failure import is_echo

STOP_SECONDS = 20.0  # from the request to stop to the kill
ECHO_SECONDS = 2.0  # how long a worker that may only have lost a peer lets the parent see that death first
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class WorkerFailed(Exception):
    """The worker that failed first, why, and its own traceback ("" where it died without one)."""

    def __init__(self, rank: int, exitcode: int, traceback_text: str, reason: str) -> None:
        super().__init__(f"worker process {rank} failed: {reason}")
        self.rank, self.exitcode, self.traceback_text, self.reason = rank, exitcode, traceback_text, reason


class Interrupted(Exception):
    """A signal asked for the end, and every worker is gone."""

    def __init__(self, signal_name: str) -> None:
        super().__init__(f"interrupted by {signal_name}")
        self.signal_name = signal_name


def run_processes(target: Callable[..., None], args: tuple[Any, ...], processes: int, max_restarts: int = 0) -> None:
    """Runs `target(*args)` in `processes` processes, which find RANK, WORLD_SIZE, MASTER_ADDR, ... as usual.

    When one dies, all are ended and started again, up to `max_restarts` times; `restarts()` tells the target how often.
    On SIGINT or SIGTERM every running worker gets SIGINT (again, after Ctrl-C) and STOP_SECONDS to return.
    """
    with tempfile.TemporaryDirectory(prefix="gcbench-") as folder:
        notes = Path(folder)
        with _stop_on_signal(notes), _workers_born_deaf():
            logging.disable()  # elastic logs every step of a shutdown, of which our exceptions say the gist
            try:
                elastic_launch(_config(processes, folder, max_restarts), _worker)(target, args, notes)
            except ChildFailedError as error:
                raise _first_failure(error, notes, attempt=max_restarts) from None
            finally:
                logging.disable(logging.NOTSET)


def restarts() -> int:
    """How often this process and its peers were started before."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def _config(processes: int, log_dir: str, max_restarts: int) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        logs_specs=DefaultLogsSpecs(log_dir=log_dir),
        run_id="gcbench",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # any free port
        local_addr="127.0.0.1",
        max_restarts=max_restarts,
        signals_to_handle="",  # elastic's handlers would replace ours, and raise at any line of the launcher
    )


def _worker(target: Callable[..., None], args: tuple[Any, ...], notes: Path) -> None:
    try:
        (notes / f"started-{os.getpid()}").touch()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if not (notes / "stop").exists():
            target(*args)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # torch 2.11 would take it for success, and wait for a return value
    except Exception as error:
        _note_failure(error, notes)
        _await_end()
        time.sleep(ECHO_SECONDS if isinstance(error, RuntimeError) else 0)  # torch's word for a lost connection
        raise
    _await_end()


def _await_end() -> None:
    """Elastic lets workers that return wait for the others, out of reach of the target's signal handlers."""

    def leave(number: int, frame: object) -> None:
        if number == signal.SIGTERM or os.getppid() != parent:
            sys.exit(1)  # by elastic, since another one failed; on SIGINT elastic still needs those that wait

    parent = getattr(parent_process(), "pid", None)
    for number in _SIGNALS:
        signal.signal(number, leave)
    leave(signal.SIGINT, None)  # the parent may have died during the work


def _note_failure(error: Exception, notes: Path) -> None:
    """Elastic's notes know whole seconds only: too coarse to tell a failure from its echo in the peers."""
    rank, attempt = int(os.environ["RANK"]), restarts()
    frames = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    note = (is_echo(error), time.monotonic_ns(), rank, text, f"{type(error).__name__}: {error}")
    draft = notes / f"draft-{attempt}-{rank}.json"
    draft.write_text(json.dumps(note))
    draft.rename(notes / f"failure-{attempt}-{rank}.json")  # whole, even if this worker is killed meanwhile


def _first_failure(error: ChildFailedError, notes: Path, attempt: int) -> WorkerFailed:
    rank, seen = error.get_first_failure()
    if not (notes / f"failure-{attempt}-{rank}.json").exists():
        reason = f"killed by {seen.signal_name()}" if seen.exitcode < 0 else f"exit code {seen.exitcode}"
        return WorkerFailed(rank, seen.exitcode, "", reason)
    _, _, rank, text, reason = min(json.loads(path.read_text()) for path in notes.glob(f"failure-{attempt}-*.json"))
    return WorkerFailed(rank, seen.exitcode, text, reason)


@contextmanager
def _stop_on_signal(notes: Path) -> Iterator[None]:
    """The first signal asks the workers to stop; when they have, Interrupted is raised."""
    received: list[str] = []
    deadlines: list[threading.Timer] = []

    def ask_workers(number: int, frame: object) -> None:
        received.append(signal.Signals(number).name)
        (notes / "stop").touch()  # for workers that have yet to be born
        for worker in active_children() if len(received) == 1 else []:
            assert worker.pid is not None
            started = (notes / f"started-{worker.pid}").exists()  # else it is importing, and can simply end
            os.kill(worker.pid, signal.SIGINT if started else signal.SIGTERM)
            deadlines.append(threading.Timer(STOP_SECONDS, worker.kill))
            deadlines[-1].start()

    before = {number: signal.signal(number, ask_workers) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for deadline in deadlines:
            deadline.cancel()
        if received:
            raise Interrupted(received[0])


@contextmanager
def _workers_born_deaf() -> Iterator[None]:
    """Processes started here hear SIGINT from `_worker` on: before, Ctrl-C would print what they are importing."""
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()  # hears SIGINT in place of the main thread
    resource_tracker.ensure_running()  # its first start would undo the next line
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        done.set()
