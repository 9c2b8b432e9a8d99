"""Whole training steps by several methods in turn, in processes that stay up."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from gloo_pool import Process
from lib.turns import BASELINE, make_contenders, message_seconds, time_rows
from torch import nn

from gcbench.runner.control import Control


def step_rows(
    process: Process,
    overrides: Sequence[str],
    methods: Mapping[str, Sequence[str]],
    mirrored: Sequence[str],
) -> tuple[list[dict[str, Any]], bool]:
    """Return the rows, and whether all share one set of weights that has moved."""
    contenders = make_contenders(overrides, methods, process.control, mirrored)
    start = [p.detach().clone() for p in contenders[BASELINE].model.parameters()]
    measured = time_rows(contenders, process.control, rounds=1)
    ends = [list(contender.model.parameters()) for contender in contenders.values()]
    shared = all(torch.equal(p, q) for end in ends for p, q in zip(end, ends[0], strict=True))
    moved = not any(torch.equal(p, q) for p, q in zip(start, ends[0], strict=True))
    return measured, shared and moved


def latency(process: Process) -> float:
    return message_seconds(process.control)


@dataclass
class Sleeper:
    """A contender whose steps last `seconds`."""

    seconds: float
    model: nn.Module = field(default_factory=lambda: nn.Linear(1, 1))
    period: int = 1

    def step(self) -> None:
        time.sleep(self.seconds)

    def settle(self) -> None:
        pass

    def facts(self, control: Control) -> dict[str, Any]:
        return {}


def uneven_rows(process: Process, seconds: Sequence[float]) -> list[dict[str, Any]]:
    """Return the rows of steps of 10 ms, and of steps whose seconds differ between processes."""
    contenders = {BASELINE: Sleeper(0.01), "uneven": Sleeper(seconds[process.rank], period=3)}
    return time_rows(contenders, process.control, rounds=1)
