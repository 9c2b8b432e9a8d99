"""The launcher of local processes: a parent and its workers, one case per test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import local_cases
import pytest
from local_cases import main
from needed import patience
from nightly import slow_but
from processes import Copy


@contextmanager
def start_parent(case: str, folder: Path, spawned: bool = False) -> Iterator[Copy | Spawning]:
    """Start a parent of two workers, all copies of one server or spawned as for users."""
    with (
        Spawning(case, folder)
        if spawned
        else Copy(main, case, str(folder), folder=folder) as parent
    ):
        yield parent
        assert is_gone(parent.pid), "somebody is left over"


class Spawning(subprocess.Popen[str]):
    """A parent that starts in a new interpreter, as for users, and so do its workers."""

    def __init__(self, case: str, folder: str) -> None:
        pipe = subprocess.PIPE
        super().__init__(
            [sys.executable, local_cases.__file__, case, folder],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )

    def __exit__(self, *error: object) -> None:
        if not is_gone(self.pid, seconds=0):
            os.killpg(self.pid, signal.SIGKILL)
        self.communicate()


def is_gone(group: int, seconds: float = 30.0) -> bool:
    """Return whether the process group ends within `seconds`.

    multiprocessing's resource tracker ends a moment after its parent.
    """
    end = time.monotonic() + patience(seconds)
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.02)


def await_workers(folder: Path) -> None:
    end = time.monotonic() + patience(120)
    while len(list(folder.glob("started-*"))) < 2:
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    "spawned", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["copies", "spawned"]
)
def test_workers_find_each_other_and_print_as_they_are(tmp_path: Path, spawned: bool) -> None:
    """The spawned case may be slow, as the script in test_runs.py also has spawned workers."""
    with start_parent("plain", tmp_path, spawned) as parent:
        out, err = parent.communicate(timeout=patience(120))
    # The processes share a pipe, so that their texts and line breaks may be interleaved.
    assert sorted(re.findall(r"rank . of 2 has \[3.0, 3.0\]", out)) == [
        f"rank {r} of 2 has [3.0, 3.0]" for r in (0, 1)
    ]
    assert err == ""


@pytest.mark.parametrize(
    ("case", "failure", "trace"),
    [
        ("raise", "failed: 1 ValueError: the data are gone", "ValueError: the data are gone"),
        pytest.param(
            *(
                "cleanup",
                "failed: 1 RuntimeError: the model is gone",
                "RuntimeError: the model is gone",
            ),
            marks=pytest.mark.slow,
        ),
        ("kill", "failed: 1 killed by SIGKILL", None),
        pytest.param("exit", "failed: 1 exit code 3", None, marks=pytest.mark.slow),
        pytest.param("leave", "failed: 1 SystemExit: 4", "SystemExit: 4", marks=pytest.mark.slow),
        pytest.param(
            "ctrl-c", "failed: 1 KeyboardInterrupt: ", "KeyboardInterrupt", marks=pytest.mark.slow
        ),
        pytest.param("nothing", "failed: 1 exit code 0", None, marks=pytest.mark.slow),
    ],
)
def test_the_first_death_is_told_once_and_takes_the_others_down(
    case: str, failure: str, trace: str | None, tmp_path: Path
) -> None:
    with start_parent(case, tmp_path) as parent:
        out, err = parent.communicate(timeout=patience(120))
    assert failure in out.splitlines()
    if trace is None:
        assert err == ""
    else:
        assert err.startswith("Traceback") and err.endswith(trace + "\n")
        assert err.count("Traceback") == 1 and "by peer" not in err


@pytest.mark.parametrize(
    ("number", "to_group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, True)]
)
def test_a_signal_lets_workers_finish(
    number: signal.Signals, to_group: bool, tmp_path: Path
) -> None:
    with start_parent("stop", tmp_path) as parent:
        await_workers(tmp_path)
        sent = time.monotonic()
        (os.killpg if to_group else os.kill)(parent.pid, number)
        out, err = parent.communicate(timeout=patience(120))
    assert f"interrupted: {number.name}" in out and err == ""
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
    assert float(re.findall("took (.*)", out)[0]) - sent < patience(18)


def test_workers_that_do_not_stop_are_killed(tmp_path: Path) -> None:
    with start_parent("stop-deaf", tmp_path) as parent:
        await_workers(tmp_path)
        os.kill(parent.pid, signal.SIGTERM)
        out, err = parent.communicate(timeout=patience(120))
    assert "interrupted: SIGTERM" in out and err == ""
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == ["checkpoint-0"]


def test_a_second_ctrl_c_kills_workers_that_do_not_stop(tmp_path: Path) -> None:
    with start_parent("stop-deaf for long", tmp_path) as parent:
        await_workers(tmp_path)
        os.kill(parent.pid, signal.SIGINT)  # which has seen it when it has asked the workers
        checkpoint = tmp_path / "checkpoint-0"
        while not checkpoint.exists():
            time.sleep(0.01)
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=patience(60))
    assert "interrupted: SIGINT" in out and err == ""
    assert [*tmp_path.glob("checkpoint-*")] == [checkpoint]


@pytest.mark.capability
def test_ctrl_c_while_workers_start_is_quiet(tmp_path: Path) -> None:
    with start_parent("stop", tmp_path, spawned=True) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        while len(children.read_text().split()) < 2:  # the resource tracker and the first worker
            time.sleep(0.01)
        worker = Path("/proc", children.read_text().split()[-1])
        while "spawn_main" not in (worker / "cmdline").read_text():
            time.sleep(0.01)
        status = (worker / "status").read_text()
        blocked = int(re.findall(r"^SigBlk:\s*(\w+)", status, re.MULTILINE)[0], 16)
        assert blocked & (1 << (signal.SIGINT - 1)), "Ctrl-C would print what it is importing"
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=patience(120))
    assert "interrupted: SIGINT" in out and err == ""


@pytest.mark.parametrize("case", slow_but(["stop"], ["stop", "alone"]))
def test_workers_end_with_a_parent_that_was_killed(case: str, tmp_path: Path) -> None:
    """They end even while they wait for each other to connect."""
    with start_parent(case, tmp_path) as parent:
        await_workers(tmp_path)
        parent.kill()
        assert is_gone(parent.pid)
