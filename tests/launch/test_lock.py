"""One process at a time in a run's directory; real processes, as locks are theirs."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gcbench.config import RunFailed
from gcbench.launch.lock import alone

HOLDER = """
import os, sys, time
from pathlib import Path
from gcbench.launch.lock import alone
with alone(Path(sys.argv[1])):
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
        [sys.executable, "-c", HOLDER, str(tmp_path), ends], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert holder.stdout
    try:
        said = {holder.stdout.readline().strip(), holder.stdout.readline().strip()}
        if ends == "stays":
            words = f"{tmp_path} is being run by process {holder.pid} on .*; wait for it, .*outputs=<folder>.*remove .*run.lock"
            with pytest.raises(RunFailed, match=words), alone(tmp_path):
                pass
            os.killpg(holder.pid, signal.SIGKILL)
            holder.wait()
        else:
            assert said == {"in", "out"}, f"its worker lives on: {said}"
        with alone(tmp_path):
            assert (tmp_path / "run.lock").read_text().startswith(f"process {os.getpid()} on ")
    finally:
        if holder.poll() is None:
            os.killpg(holder.pid, signal.SIGKILL)
            holder.wait()


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(file: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with alone(tmp_path), alone(tmp_path):
        assert "No locks available; nothing keeps a second process from" in caplog.text
