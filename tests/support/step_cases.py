"""Whole steps by methods in turn, in processes that stay up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gloo_pool import Process

from gcbench.bench.steps import contenders, message_seconds, rows
from gcbench.config import register


def step_rows(
    process: Process, words: Sequence[str], methods: Mapping[str, Sequence[str]]
) -> tuple[list[dict[str, Any]], bool]:
    """With whether all share one set of weights that has moved."""
    register()
    racing = contenders(words, methods, process.control)
    start = [p.detach().clone() for p in racing["no exchange"].model.parameters()]
    found = rows(racing, process.control, rounds=1)
    ends = [list(contender.model.parameters()) for contender in racing.values()]
    shared = all(torch.equal(p, q) for end in ends for p, q in zip(end, ends[0], strict=True))
    moved = not any(torch.equal(p, q) for p, q in zip(start, ends[0], strict=True))
    return found, shared and moved


def latency(process: Process) -> float:
    return message_seconds(process.control)
