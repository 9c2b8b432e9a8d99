"""The time of a step, by phase.

A step is divided into consecutive laps, each named when it begins; a collective interrupts the lap
around it. Time between the start of compression and the last collective is `encode`, and after it
`decode`. An exchange on a second thread while this one computes is hidden; only the part that this
one then waits for belongs to the step. On CUDA a lap is a pair of events on the stream. They
are only read at the log interval, so that nothing waits for the device inside a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from gcbench.runner.records.schema import PHASES

HIDDEN = ("hidden_exchange", "hidden_coding")  # under the computation, and not part of the step
WARMUP_STEPS = 3

Marks = list[tuple[str, Any]]


class Lap(NamedTuple):
    """A consecutive part of a step's time."""

    name: str
    seconds: float
    hidden: float = 0.0  # further seconds, hidden under computation


class Span(NamedTuple):
    """A lap, given by its begin and end in seconds since the first mark of a step."""

    name: str
    begin: float
    end: float

    def within(self, other: Span) -> float:
        return max(0.0, min(self.end, other.end) - max(self.begin, other.begin))


class Stopwatch:
    """A recorder of the laps of one thread."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: Marks = []
        self.name = "end"  # the name of the current lap

    def lap(self, name: str) -> None:
        """End the current lap and begin `name`."""
        self._marks.append((name, self._now()))
        self.name = name

    @contextmanager
    def exchange(self) -> Iterator[None]:
        self.lap("exchange")
        yield
        self.lap("compress")

    def stop(self) -> Marks:
        """End the current lap and return the marks since the last stop."""
        self.lap("end")
        marks, self._marks = self._marks, []
        return marks

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Clock(Stopwatch):
    """A recorder of the laps of all steps since the last `take`.

    `side_stream` is for the thread that exchanges in the background, if there is one. A lap `await`
    is spent waiting for that thread.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.side_stream = Stopwatch(device)
        self._awaited: list[Marks] = []
        self._steps: list[tuple[Marks, list[Marks]]] = []
        self._seen = 0

    @property
    def phase(self) -> str:
        """Return the name of the current lap, or of the side stream's lap for which it waits."""
        return self.side_stream.name if self.name == "await" else self.name

    def add_awaited(self, work: Sequence[Marks]) -> None:
        """Add the work for which the lap `await` of this step waited."""
        self._awaited += work

    def end_step(self) -> None:
        marks = self.stop()
        # Warm-up is left out: caches, lazy initialization and autotuning belong to no method.
        if self._seen >= WARMUP_STEPS:
            self._steps.append((marks, self._awaited))
        self._awaited = []
        self._seen += 1

    def take(self) -> list[list[Lap]]:
        """Return the laps of every step since the last call, warm-up steps aside."""
        if self._cuda and self._steps:
            self._steps[-1][0][-1][1].synchronize()
        steps = [self._laps(marks, awaited) for marks, awaited in self._steps]
        self._steps = []
        return steps

    def _laps(self, marks: Marks, awaited: list[Marks]) -> list[Lap]:
        start = marks[0][1]
        work = [span for part in awaited for span in self._spans(part, start)]
        laps = []
        for span in self._spans(marks, start):
            laps += (
                _split_wait(span, work)
                if span.name == "await"
                else [Lap(span.name, span.end - span.begin)]
            )
        return laps

    def _spans(self, marks: Marks, start: Any) -> list[Span]:
        times = [
            start.elapsed_time(mark) / 1e3 if self._cuda else mark - start for _, mark in marks
        ]
        names = [name for name, _ in marks[:-1]]
        last = max((i for i, name in enumerate(names) if name == "exchange"), default=len(names))
        names = [
            ("encode" if i < last else "decode") if name == "compress" else name
            for i, name in enumerate(names)
        ]
        return [Span(*span) for span in zip(names, times, times[1:], strict=False)]


def _split_wait(waited: Span, work: Sequence[Span]) -> list[Lap]:
    """Return the laps of the work: the seconds that were waited for, and the hidden ones.

    What remains of the wait, the time to wake up, is a lap `wait`.
    """
    shown = [span.within(waited) for span in work]
    laps = [
        Lap(span.name, part, span.end - span.begin - part)
        for span, part in zip(work, shown, strict=True)
    ]
    return [*laps, Lap("wait", waited.end - waited.begin - sum(shown))]


class Ledger:
    """The seconds of each phase in all processes.

    The exchange of a collective is its shortest time over ranks; the rest is `wait`. `timed` is
    false if processes have several (virtual) workers each; `elapsed()` is None then.

    `conditions` names what the times depend on and a continued run may change, such as its link.
    """

    def __init__(
        self, processes: int, timed: bool = True, conditions: Mapping[str, Any] | None = None
    ) -> None:
        self._timed = timed
        self._conditions = dict(conditions or {})
        # Seconds of steps whose phases no longer count; None if workers were virtual in some.
        self._earlier: float | None = 0.0
        self._begin(processes)

    def _begin(self, processes: int) -> None:
        self._totals = [dict.fromkeys((*PHASES, *HIDDEN), 0.0) for _ in range(processes)]
        self._steps = 0

    def begin_anew(self, **changed: Any) -> None:
        """Reset the times of phases, as conditions `changed`.

        Earlier steps still count in `elapsed()`.
        """
        self._conditions |= changed
        self._earlier = self.elapsed()
        self._begin(len(self._totals))

    def add(self, by_process: list[list[list[Lap]]]) -> None:
        """Add the laps of the same steps in all processes; `by_process[p]` are those of process p.

        All processes must have issued the same collectives. A lap may be a plain sequence, as it
        is received from other processes.
        """
        for same_step in zip(*by_process, strict=True):
            steps = [[Lap(*lap) for lap in laps] for laps in same_step]
            self._steps += 1
            exchanges = [[lap for lap in laps if lap.name == "exchange"] for laps in steps]
            shortest = [
                min(lap.seconds + lap.hidden for lap in same)
                for same in zip(*exchanges, strict=True)
            ]
            for totals, laps, exchanged in zip(self._totals, steps, exchanges, strict=True):
                for lap, seconds in zip(exchanged, shortest, strict=True):
                    # Waiting comes before exchanging, so it is the first to be hidden.
                    shown = min(lap.seconds, seconds)
                    totals["exchange"] += shown
                    totals["wait"] += lap.seconds - shown
                    totals["hidden_exchange"] += seconds - shown
                for lap in laps:
                    totals["step"] += lap.seconds
                    if lap.name != "exchange":
                        totals[lap.name] += lap.seconds
                        totals["hidden_coding"] += lap.hidden

    def seconds(self) -> dict[str, dict[str, float]] | None:
        """Return the seconds per step of each phase, mean and maximum over processes.

        None before the end of warm-up.
        """
        if not self._steps:
            return None
        rows = {
            phase: [t[phase] / self._steps for t in self._totals] for phase in (*PHASES, *HIDDEN)
        }
        return {phase: {"mean": sum(v) / len(v), "max": max(v)} for phase, v in rows.items()}

    def elapsed(self) -> float | None:
        """Return the seconds of all steps after warm-up so far, as a mean over processes.

        None if some of them had virtual workers, as nobody knows how long they would have taken.
        """
        if not self._timed or self._earlier is None:
            return None
        counted = sum(totals["step"] for totals in self._totals) / len(self._totals)
        return self._earlier + counted

    def state(self) -> dict[str, Any]:
        return {
            "totals": self._totals,
            "steps": self._steps,
            "earlier": self._earlier,
            "elapsed": self.elapsed(),
            "conditions": self._conditions,
        }

    def load(self, state: dict[str, Any]) -> list[str]:
        """Restore a state; return the names of the conditions that have changed since.

        If there are any, or another number of processes, only the elapsed seconds are restored: a
        mean over steps of both kinds would be the time of neither.
        """
        before = state.get("conditions", self._conditions)  # not in older checkpoints
        changed = [
            name
            for name in sorted(before.keys() | self._conditions.keys())
            if before.get(name) != self._conditions.get(name)
        ]
        if not changed and len(state["totals"]) == len(self._totals):
            self._totals, self._steps = state["totals"], state["steps"]
            self._earlier = state.get("earlier", 0.0)  # not in older checkpoints
        else:
            # Older checkpoints do not have it; it is None for virtual workers.
            self._earlier = state.get("elapsed")
        return changed
