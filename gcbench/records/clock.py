"""Where the time of a step goes.

A step is cut into consecutive laps, each named when it begins; the collectives cut themselves out of the lap around them.
What lies between the start of compression and the last collective is `encode`, what follows it is `decode`. On CUDA a lap
is a pair of events on the stream, read at the log interval only: nothing waits for the device inside a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

PHASES = ("data", "forward", "backward", "encode", "exchange", "wait", "decode", "update", "step")
WARMUP_STEPS = 3

Lap = tuple[str, float]


class Clock:
    """Laps of the steps since the last `take`."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []
        self._steps: list[list[tuple[str, Any]]] = []
        self._seen = 0
        self.phase = "end"  # the lap that has begun last

    def lap(self, name: str) -> None:
        """Ends the current lap and begins `name`."""
        self._marks.append((name, self._now()))
        self.phase = name

    @contextmanager
    def exchange(self) -> Iterator[None]:
        self.lap("exchange")
        yield
        self.lap("compress")

    def end_step(self) -> None:
        self.lap("end")
        if self._seen >= WARMUP_STEPS:  # caches, lazy initialisation and autotuning belong to no method
            self._steps.append(self._marks)
        self._marks = []
        self._seen += 1

    def take(self) -> list[list[Lap]]:
        """Seconds of the laps of every step since the last call."""
        if self._cuda and self._steps:
            self._steps[-1][-1][1].synchronize()
        steps = [self._laps(marks) for marks in self._steps]
        self._steps = []
        return steps

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _laps(self, marks: list[tuple[str, Any]]) -> list[Lap]:
        laps = [
            (name, begin.elapsed_time(end) / 1e3 if self._cuda else end - begin)
            for (name, begin), (_, end) in zip(marks, marks[1:], strict=False)
        ]
        last = max((i for i, (name, _) in enumerate(laps) if name == "exchange"), default=len(laps))
        return [
            (("encode" if i < last else "decode") if name == "compress" else name, seconds)
            for i, (name, seconds) in enumerate(laps)
        ]


class Ledger:
    """Seconds by phase over all processes. A collective's exchange is its minimum over ranks; the rest is `wait`."""

    def __init__(self, processes: int) -> None:
        self._totals = [dict.fromkeys(PHASES, 0.0) for _ in range(processes)]
        self._steps = 0

    def add(self, by_process: list[list[list[Lap]]]) -> None:
        """`by_process[p]` holds the laps of process p for the same steps, in which all issued the same collectives."""
        for steps in zip(*by_process, strict=True):
            self._steps += 1
            shortest = [
                min(seconds) for seconds in zip(*([s for name, s in laps if name == "exchange"] for laps in steps), strict=True)
            ]
            for totals, laps in zip(self._totals, steps, strict=True):
                own = sum(shortest)
                totals["exchange"] += own
                totals["wait"] += sum(s for name, s in laps if name == "exchange") - own
                totals["step"] += sum(s for _, s in laps)
                for name, seconds in laps:
                    if name != "exchange":
                        totals[name] += seconds

    def seconds(self) -> dict[str, dict[str, float]] | None:
        """Per step: mean and maximum over processes; nothing before the warm-up has passed."""
        if not self._steps:
            return None
        rows = {phase: [t[phase] / self._steps for t in self._totals] for phase in PHASES}
        return {phase: {"mean": sum(v) / len(v), "max": max(v)} for phase, v in rows.items()}

    def elapsed(self) -> float:
        """Seconds of all steps so far, without the first ones; mean over processes."""
        return sum(totals["step"] for totals in self._totals) / len(self._totals)

    def state(self) -> dict[str, Any]:
        return {"totals": self._totals, "steps": self._steps}

    def load(self, state: dict[str, Any]) -> None:
        """Times of another number of processes are other times, and start anew."""
        if len(state["totals"]) == len(self._totals):
            self._totals, self._steps = state["totals"], state["steps"]
