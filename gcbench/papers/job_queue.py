"""A queue that runs commands, several at a time, until all have ended or a signal stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import IO

from gcbench.runner.ending import PARENT
from gcbench.runner.launch.local import collect_signals
from gcbench.runner.records.schema import Result
from gcbench.runner.report.measures import main_score

LOOK_SECONDS = 0.2  # between checks for commands that have ended
STOP_SECONDS = 600.0  # from SIGINT, after which a run writes a checkpoint, to SIGKILL


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    index: int  # in the list of commands
    seconds: float
    code: int  # its exit status
    stopped: bool  # whether it was asked to stop
    said: str  # the last line that it printed


class _Running:
    """A running command."""

    def __init__(self, index: int, command: Sequence[str], place: Mapping[str, str]) -> None:
        self.index, self.place = index, place
        self.started = time.monotonic()
        self._output: IO[bytes] = tempfile.TemporaryFile()
        # In a session of its own, so that Ctrl-C reaches it only once, through the queue.
        self.process = subprocess.Popen(
            command,
            env={**environment_of_child(), **place},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # With autogroup scheduling, Linux weighs sessions by a niceness that each has of its own.
        with suppress(OSError):
            Path(f"/proc/{self.process.pid}/autogroup").write_text(str(os.nice(0)))

    def end(self, stopped: bool) -> Ended:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        self._output.close()
        seconds = time.monotonic() - self.started
        return Ended(self.index, seconds, self.process.wait(), stopped, lines[-1] if lines else "")


def environment_of_child() -> dict[str, str]:
    """Return the environment of a command of gcbench that ends with this one."""
    return {
        **{name: value for name, value in os.environ.items() if name != "HYDRA_FULL_ERROR"},
        PARENT: str(os.getpid()),
    }


def describe_outcome(ended: Ended, result: Result | None) -> str:
    """Return how a run ended: its score, when it was stopped, or why it failed."""
    after = f"{ended.seconds / 60:.1f} min"
    if ended.stopped and ended.code:
        return f"stopped after {after}"
    if ended.code or result is None:
        return f"not done after {after}, and not tried again now: {ended.said}"
    scored = main_score(result)
    return "{} {:.4g}, ".format(*scored) + after if scored else after


def run_commands(
    commands: Sequence[Sequence[str]], places: Sequence[Mapping[str, str]], seconds: float = inf
) -> Iterator[Ended]:
    """Run commands in order, one per place at a time, and yield each when it has ended.

    After `seconds`, and on Ctrl-C, SIGTERM or when the terminal is closed, no further command is
    started, and the running ones get SIGINT and STOP_SECONDS to end. A second signal kills them.
    Commands inherit the niceness of this process.

    Args:
        commands: the arguments of each command, the program first.
        places: environment variables, one set for each command that runs at the same time.
        seconds: the time after which the commands are stopped.
    """
    end = time.monotonic() + seconds
    waiting = list(enumerate(commands))[::-1]
    free = list(places)[::-1]
    running: list[_Running] = []
    kill_at = inf
    with collect_signals() as received:
        try:
            while running or (waiting and kill_at == inf):
                if kill_at == inf and (received or time.monotonic() >= end):
                    kill_at = time.monotonic() + STOP_SECONDS
                    for one in running:
                        one.process.send_signal(signal.SIGINT)
                while waiting and free and kill_at == inf:
                    running.append(_Running(*waiting.pop(), free.pop()))
                if len(received) > 1 or time.monotonic() > kill_at:
                    for one in running:
                        one.process.kill()
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    free.append(one.place)
                    yield one.end(stopped=kill_at < inf)
                time.sleep(LOOK_SECONDS)
        finally:
            for one in running:
                one.process.kill()
                one.process.wait()
    if received and kill_at == inf:  # it came when there was nothing more to stop here
        if received[0] == "SIGINT":
            raise KeyboardInterrupt  # rather than wherever the signal's handler would run
        signal.raise_signal(signal.Signals[received[0]])
