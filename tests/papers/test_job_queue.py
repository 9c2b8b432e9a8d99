"""A queue runs its commands in order, a few at a time; a run that it stops leaves a checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from needed import patience

from gcbench.papers.job_queue import Ended, run_commands
from gcbench.runner.records.files import RunFiles

SLEEP = "import time; time.sleep(600)"
NOTE = "import sys, time; open(sys.argv[1], 'a').write(sys.argv[2]); time.sleep(0.1)"


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-S", "-c", program, *map(str, arguments)]


@pytest.fixture
def interrupt() -> Iterator[object]:
    """Return a function that sends SIGINT to this process, once or more, when a file appears."""
    threads = []

    def wait(path: Path, times: int = 1) -> None:
        def send() -> None:
            while not path.exists():
                time.sleep(0.02)
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)

        threads.append(threading.Thread(target=send, daemon=True))
        threads[-1].start()

    yield wait
    for thread in threads:
        thread.join(patience(60))


def test_one_place_runs_commands_in_their_order(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    commands = [python(NOTE, notes, letter) for letter in "abc"]
    assert [ended.index for ended in run_commands(commands, [{}])] == [0, 1, 2]
    assert notes.read_text() == "abc"


def test_places_run_at_the_same_time_with_their_variables(tmp_path: Path) -> None:
    meet = """if True:
        import os, pathlib, sys, time
        mine, others = (pathlib.Path(path) for path in sys.argv[1:])
        mine.touch()
        while not others.exists(): time.sleep(0.01)
        print(os.environ["PLACE"])"""
    first, second = tmp_path / "first", tmp_path / "second"
    commands = [python(meet, first, second), python(meet, second, first)]
    ended = list(run_commands(commands, [{"PLACE": "0"}, {"PLACE": "1"}]))
    assert sorted((one.index, one.said) for one in ended) == [(0, "0"), (1, "1")]


def test_a_failure_is_said_and_the_others_run() -> None:
    commands = [python("raise SystemExit('no such thing')"), python("print('well')")]
    failed, well = run_commands(commands, [{}])
    assert (failed.code, failed.said, failed.stopped) == (1, "no such thing", False)
    assert (well.code, well.said) == (0, "well")


def test_the_end_of_the_time_stops_what_runs_and_starts_no_other() -> None:
    ended = list(run_commands([python(SLEEP)] * 3, [{}], seconds=1))
    assert [(one.index, one.stopped, one.code != 0) for one in ended] == [(0, True, True)]


def test_a_second_signal_kills(tmp_path: Path, interrupt) -> None:
    deaf = (
        "import pathlib, signal, sys, time; signal.signal(2, signal.SIG_IGN); "
        "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    )
    interrupt(tmp_path / "started", times=2)
    (ended,) = run_commands([python(deaf, tmp_path / "started")] * 2, [{}])
    assert ended.stopped and ended.code == -signal.SIGKILL


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_when_the_queue_is_typed_again(
    tmp_path: Path, interrupt
) -> None:
    directory = tmp_path / "run"
    run = [
        *[sys.executable, "-m", "gcbench", "compressor=none", "trainer.workers=2", "logger=none"],
        "model.widths=[16]",
        *["trainer.launcher=virtual", "trainer.threads=1", "trainer.max_steps=150"],
        *["trainer.log_every=1", "trainer.eval_every=null", f"directory={directory}"],
    ]

    def queue() -> list[Ended]:
        return list(run_commands([run], [{}]))

    interrupt(directory / "metrics.jsonl")
    (stopped,) = queue()
    assert stopped.stopped and stopped.code == 130, stopped.said
    before = RunFiles(directory).read_result()
    assert before is not None and before.status == "interrupted"
    steps = {line["step"] for line in RunFiles(directory).read_metrics()}
    assert 0 < max(steps) < 150
    (ended,) = queue()
    after = RunFiles(directory).read_result()
    assert ended.code == 0 and after is not None and after.status == "done"
    # The second start continued from the checkpoint: no step is logged twice.
    lines = [
        line["step"] for line in RunFiles(directory).read_metrics() if line["event"] == "train"
    ]
    assert lines == sorted(set(lines)) and after.started > before.started


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="no groups by session here")
def test_commands_are_as_nice_as_the_queue() -> None:
    """Linux weighs sessions by their own niceness, and every command has a session of its own."""
    script = (
        "import os; from gcbench.papers.job_queue import run_commands; os.nice(7); "
        "command = ['sh', '-c', 'sleep 1; cat /proc/self/autogroup']; "
        "print(next(run_commands([command], [{}])).said)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip().endswith(f"nice {min(os.nice(0) + 7, 19)}"), done.stderr


def test_a_signal_after_the_last_command_is_left_to_the_caller() -> None:
    with pytest.raises(KeyboardInterrupt):
        for _ in run_commands([python("pass")], [{}]):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_command_ends_with_a_killed_queue(tmp_path: Path) -> None:
    """Otherwise the same command, typed again, would find its run taken."""
    script = (
        "import sys; from gcbench.papers.job_queue import run_commands; "
        "list(run_commands([[sys.executable, '-m', 'gcbench', *sys.argv[1:]]], [{}]))"
    )
    run = ["model.widths=[8]", "trainer.epochs=1000", "trainer.launcher=virtual", "logger=none"]
    directory = tmp_path / "run"
    queue = subprocess.Popen([sys.executable, "-c", script, *run, f"directory={directory}"])
    end = time.monotonic() + patience(120)
    while not (directory / "metrics.jsonl").exists():
        assert time.monotonic() < end and queue.poll() is None
        time.sleep(0.1)
    queue.kill()
    queue.wait()
    while (result := RunFiles(directory).read_result()) is None or result.status == "running":
        assert time.monotonic() < end
        time.sleep(0.1)
    assert result.status == "interrupted", result.reason
