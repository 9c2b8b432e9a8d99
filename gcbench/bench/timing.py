"""Times against a copy of the same bytes in the same run, for machines that others use, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

Work = Callable[[], object]
UNTIMED = 2  # calls before the first that counts: compilation, allocation, caches


class Timing(NamedTuple):
    """Medians over the rounds."""

    seconds: float
    memcpy_seconds: float
    ratio: float  # memcpy over the work, of the pairs; 1: as fast as a copy


def time_beside_copy(work: Work, x: Tensor, rounds: int) -> Timing:
    """Return the times of `work` and of a copy of `x`, in turn: slow spells meet both."""
    target = torch.empty_like(x)
    pairs = [
        (seconds(lambda: target.copy_(x), x.device), seconds(work, x.device))
        for _ in range(UNTIMED + rounds)
    ][UNTIMED:]
    copies, works = zip(*pairs, strict=True)
    return Timing(median(works), median(copies), median(copy / work for copy, work in pairs))


def seconds(work: Work, device: torch.device) -> float:
    """Return the seconds that `work` takes, on a GPU by its own events."""
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
