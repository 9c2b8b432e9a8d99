"""The launcher of local processes: this file runs itself, one case a test, in its own session."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from needed import patience

from gcbench.launch import local
from gcbench.launch.meeting import join


def work(case: str, folder: str) -> None:
    rank = int(os.environ["RANK"])
    if case == "alone":  # the first waits for the other, which never comes, in torch's own code
        (Path(folder) / f"started-{rank}").touch()
        if rank:
            time.sleep(600)
    if case.startswith("stop"):
        return work_until_stopped(case, rank, Path(folder))
    join("gloo")
    total = torch.full((2,), rank + 1.0)
    dist.all_reduce(total)
    print(f"rank {rank} of {os.environ['WORLD_SIZE']} has {total.tolist()}", flush=True)
    if rank == 1:
        die(case)
    dist.all_reduce(total)  # where the others wait for rank 1
    dist.destroy_process_group()


def die(case: str) -> None:
    if case == "raise":
        raise ValueError("the data are gone")
    if case == "cleanup":  # its peers lose their connections before its error leaves the target
        try:
            raise RuntimeError("the model is gone")
        finally:
            dist.destroy_process_group()
            time.sleep(0.2)
    if case == "leave":
        sys.exit(4)
    if case == "ctrl-c":
        raise KeyboardInterrupt
    if case == "nothing":
        os._exit(0)
    if case == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "exit":
        os._exit(3)


def work_until_stopped(case: str, rank: int, folder: Path) -> None:
    stops: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: stops.append(number))
    (folder / f"started-{rank}").touch()
    while not stops or (case == "stop-deaf" and rank == 1):
        time.sleep(0.02)
    (folder / f"checkpoint-{rank}").touch()


def main(case: str, folder: str, copies: str) -> None:
    if copies:  # which spares each 5 s of imports
        local._PROCESSES = multiprocessing.get_context("fork")
    if case == "stop-deaf":
        local.STOP_SECONDS = 1.0
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which tests may run, has it ignored
    before = signal.getsignal(signal.SIGINT)
    # Workers do not run the script that starts them: what they do must be importable.
    target = import_module(Path(__file__).stem).work
    try:
        local.run_processes(target, (case, folder), 2)
    except local.WorkerFailed as failure:
        print(f"failed: {failure.rank} {failure.exitcode} {failure.reason}")
        sys.stderr.write(failure.traceback_text)
    except local.Interrupted as interrupted:
        print(f"interrupted: {interrupted.signal_name}")
    assert signal.getsignal(signal.SIGINT) is before
    print(f"took {time.monotonic()}")


@contextmanager
def start_parent(case: str, folder: Path, copies: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Start a parent of two workers, which are copies of it or start as users start them."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, case, str(folder), "copies" if copies else ""]
    pipe = subprocess.PIPE
    parent = subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        yield parent
        assert is_gone(parent.pid), "somebody is left over"
    finally:
        if not is_gone(parent.pid, seconds=0):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def is_gone(group: int, seconds: float = 30.0) -> bool:
    """Return whether the process group has ended.

    multiprocessing's resource tracker goes a moment after its parent.
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


def test_workers_find_each_other_and_print_as_they_are(tmp_path: Path) -> None:
    with (
        start_parent("plain", tmp_path, copies=False) as parent,
        start_parent("plain", tmp_path) as other,
    ):
        for process in (parent, other):
            out, err = process.communicate(timeout=patience(120))
            # Two processes share the pipe: what each printed is there, whoever's line ends came
            # first.
            assert sorted(re.findall(r"rank . of 2 has \[3.0, 3.0\]", out)) == [
                f"rank {r} of 2 has [3.0, 3.0]" for r in (0, 1)
            ]
            assert err == ""


@pytest.mark.parametrize(
    ("case", "failure", "trace"),
    [
        ("raise", "failed: 1 1 ValueError: the data are gone", "ValueError: the data are gone"),
        pytest.param(
            *(
                "cleanup",
                "failed: 1 1 RuntimeError: the model is gone",
                "RuntimeError: the model is gone",
            ),
            marks=pytest.mark.slow,
        ),
        ("kill", "failed: 1 -9 killed by SIGKILL", None),
        pytest.param("exit", "failed: 1 3 exit code 3", None, marks=pytest.mark.slow),
        pytest.param("leave", "failed: 1 1 SystemExit: 4", "SystemExit: 4", marks=pytest.mark.slow),
        pytest.param(
            "ctrl-c", "failed: 1 1 KeyboardInterrupt: ", "KeyboardInterrupt", marks=pytest.mark.slow
        ),
        pytest.param("nothing", "failed: 1 0 exit code 0", None, marks=pytest.mark.slow),
    ],
)
def test_the_first_death_is_told_once_and_takes_the_others_down(
    case: str, failure: str, trace: str | None, tmp_path: Path
) -> None:
    with start_parent(case, tmp_path, copies=case != "raise") as parent:
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
    # It ends before STOP_SECONDS, also on a busy machine.
    assert float(re.findall("took (.*)", out)[0]) - sent < patience(18)


def test_workers_that_do_not_stop_are_killed(tmp_path: Path) -> None:
    with start_parent("stop-deaf", tmp_path) as parent:
        await_workers(tmp_path)
        os.kill(parent.pid, signal.SIGTERM)
        out, err = parent.communicate(timeout=patience(120))
    assert "interrupted: SIGTERM" in out and err == ""
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == ["checkpoint-0"]


def test_ctrl_c_while_workers_start_is_quiet(tmp_path: Path) -> None:
    with start_parent("stop", tmp_path, copies=False) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        while len(children.read_text().split()) < 2:  # the resource tracker and the first worker
            time.sleep(0.01)
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=patience(120))
    assert "interrupted: SIGINT" in out and err == ""


@pytest.mark.parametrize("case", ["stop", "alone"])
def test_workers_end_with_a_parent_that_was_killed(case: str, tmp_path: Path) -> None:
    """They end even while they wait for each other to come."""
    with start_parent(case, tmp_path) as parent:
        await_workers(tmp_path)
        parent.kill()
        parent.wait()
        assert is_gone(parent.pid)


if __name__ == "__main__":
    main(*sys.argv[1:])
