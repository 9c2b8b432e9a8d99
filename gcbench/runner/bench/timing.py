"""Times relative to a copy of the same bytes in the same run, as the machine may be shared."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcbench.runner.control import Control
from gcbench.runner.records.clock import Lap, Ledger

Row = dict[str, Any]
Work = Callable[[], object]
UNTIMED = 2  # calls before the first timed one, for compilation, allocation and caches


class Timing(NamedTuple):
    """Medians over the rounds."""

    seconds: float
    memcpy_seconds: float
    ratio: float  # time of a copy over that of the work, by pairs; 1: as fast as a copy


def turns(text: str) -> int:
    """Return the number of turns that was typed for a script's option."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text}: type a number of turns, 1 or more")
    return int(text)


def time_beside_copy(work: Work, x: Tensor, rounds: int) -> Timing:
    """Return the times of `work` and of a copy of `x`, in turn, so that slow spells affect both.

    On one thread of a CPU they are seconds of the processor, to which others add little.
    """
    target = torch.empty_like(x)
    alone = torch.get_num_threads() == 1
    pairs = [
        (seconds(lambda: target.copy_(x), x.device, alone), seconds(work, x.device, alone))
        for _ in range(UNTIMED + rounds)
    ][UNTIMED:]
    copies, works = zip(*pairs, strict=True)
    return Timing(median(works), median(copies), median(copy / work for copy, work in pairs))


def cpu_beside_one_thread(work: Work, device: torch.device, rounds: int) -> float | None:
    """Return the CPU time of `work` on all threads over that on one; None without further threads.

    Threads that wait also use CPU time.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        return None
    ratios = []
    for _ in range(UNTIMED + rounds):
        took = []
        for count in (threads, 1):
            torch.set_num_threads(count)
            start = time.process_time()
            work()
            took.append(time.process_time() - start)
        ratios.append(took[0] / took[1])
    torch.set_num_threads(threads)
    return median(ratios[UNTIMED:])


def slowest(times: Mapping[str, list[float]], control: Control) -> dict[str, list[float]]:
    """Return the times of every method, each that of the slowest process."""
    return {
        name: [max(same) for same in zip(*control.gather(of_one), strict=True)]
        for name, of_one in times.items()
    }


def ratio_in_turn(times: Sequence[float], others: Sequence[float]) -> float:
    """Return the median ratio of step times to those of another method in the same turns."""
    return median(a / b for a, b in zip(times, others, strict=True))


def mean_seconds(laps: list[list[list[Lap]]]) -> dict[str, float]:
    """Return the seconds of a step by phase, averaged over the processes that `laps` are from.

    Every collective counts with its shortest time over the processes, as in a run's ledger.
    """
    ledger = Ledger(len(laps))
    ledger.add(laps)
    by_phase = ledger.seconds()
    assert by_phase is not None
    return {phase: seconds["mean"] for phase, seconds in by_phase.items()}


def seconds(work: Work, device: torch.device, of_processor: bool = False) -> float:
    """Return the seconds that `work` takes, on a GPU measured by CUDA events.

    `of_processor`: those in which this process had a core, whatever else ran on it.
    """
    if device.type != "cuda":
        now = time.process_time if of_processor else time.perf_counter
        start = now()
        work()
        return now() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
