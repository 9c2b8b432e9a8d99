"""One process at a time may use a run's directory; tests use real processes, which own locks."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gcbench.runner.config.errors import RunFailed
from gcbench.runner.launch.lock import Lock, lock_directory

HOLDER = """
import os, sys, time
from pathlib import Path
from gcbench.runner.launch.lock import lock_directory
with lock_directory(Path(sys.argv[1])):
    worker = os.fork() == 0  # it shares the lock
    if worker or sys.argv[2] == "stays":
        os.write(1, b"in\\n")  # at once: two processes write here
        time.sleep(60)
os.write(1, b"out\\n")
time.sleep(60)
"""


@pytest.mark.parametrize("ends", ["leaves", "stays"])
def test_the_next_may_come_when_one_leaves_or_is_killed(tmp_path: Path, ends: str) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), ends],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert holder.stdout
    try:
        lines = {holder.stdout.readline().strip(), holder.stdout.readline().strip()}
        if ends == "stays":
            words = (
                f"{tmp_path} is being run by process {holder.pid} on .*; wait for it, "
                ".*outputs=<folder>.*remove .*run.lock"
            )
            with pytest.raises(RunFailed, match=words), lock_directory(tmp_path):
                pass
            os.killpg(holder.pid, signal.SIGKILL)
            holder.wait()
        else:
            assert lines == {"in", "out"}, f"its worker lives on: {lines}"
        with lock_directory(tmp_path):
            assert (tmp_path / "run.lock").read_text().startswith(f"process {os.getpid()} on ")
    finally:
        if holder.poll() is None:
            os.killpg(holder.pid, signal.SIGKILL)
            holder.wait()


def hold(lock: Lock, ready: Any) -> None:
    ready.send("held")
    time.sleep(60)


STARTER = """
import multiprocessing, os, sys, time
from pathlib import Path
from gcbench.runner.launch.lock import lock_directory
from test_lock import hold
with lock_directory(Path(sys.argv[1])) as lock:
    here, there = multiprocessing.get_context("spawn").Pipe()
    worker = multiprocessing.get_context("spawn").Process(target=hold, args=(lock, there))
    worker.start()
    here.recv()
    print(worker.pid, flush=True)
    time.sleep(60)
"""


def test_a_spawned_worker_holds_the_lock_when_its_parent_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker may still train and write there."""
    monkeypatch.setattr("gcbench.runner.launch.lock.PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr("gcbench.runner.launch.lock.ORPHAN_SECONDS", 0.2)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert starter.stdout
    worker = int(starter.stdout.readline())
    try:
        starter.kill()
        starter.wait()
        with (
            pytest.raises(RunFailed, match=f"being run by process {starter.pid}"),
            lock_directory(tmp_path),
        ):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
    monkeypatch.setattr("gcbench.runner.launch.lock.ORPHAN_SECONDS", 10)
    with lock_directory(tmp_path):
        pass


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(file: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with lock_directory(tmp_path), lock_directory(tmp_path):
        assert "No locks available; without this lock a second process could" in caplog.text


CONTENDER = """
import sys, time
from pathlib import Path
from gcbench.core.errors import ConfigError
from gcbench.runner.launch.lock import lock_directory
try:
    with lock_directory(Path(sys.argv[1])):
        print("in", flush=True)
        if sys.stdin.readline().strip() == "refused":
            raise ConfigError("no such key")
except ConfigError:
    print("refused", flush=True)
"""


def contend(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONTENDER, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def opened_by(process: int) -> Iterator[str]:
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # closed since
            yield os.readlink(link)


def test_who_waited_for_a_refused_run_keeps_all_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that it waited for is removed with the directory of the refused run."""
    folder = tmp_path / "run"
    with contend(folder) as first:
        assert first.stdin and first.stdout and first.stdout.readline() == "in\n"
        with contend(folder) as second:
            assert second.stdin and second.stdout
            while "run.lock" not in {name.rpartition("/")[2] for name in opened_by(second.pid)}:
                time.sleep(0.01)
            first.stdin.write("refused\n")
            first.stdin.flush()
            assert first.stdout.readline() == "refused\n"
            assert second.stdout.readline() == "in\n"
            monkeypatch.setattr("gcbench.runner.launch.lock.PATIENCE_SECONDS", 0.1)
            with pytest.raises(RunFailed, match=f"is being run by process {second.pid}"):
                with lock_directory(folder):
                    pass
            second.stdin.write("done\n")
