"""Reductions of workers' rows in one process, rounded as those of real workers are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.comm.transport import Reduction

HALVES = torch.float16, torch.bfloat16  # types whose sums are rounded at every hop
_SEGMENT_BYTES = 1024 * 1024  # of gloo's all-reduce


def sum_in_ring(rows: Tensor) -> Tensor:
    """Return the sum `[1, n]` of rows `[W, n]`, rounded to their type at every hop of gloo's ring.

    Chunk c begins at worker c - 1 and goes down to worker c. PyTorch's own sum of rows is rounded
    once, so that its error falls with W where that of a ring grows.
    """
    workers, n = rows.shape
    size = _ring_chunk(n, workers, rows.element_size())
    chunks = F.pad(rows, (0, workers * size - n)).view(workers, workers, size)
    place = torch.arange(workers, device=rows.device)
    total = chunks[(place - 1) % workers, place]
    for hop in range(2, workers + 1):
        total = total + chunks[(place - hop) % workers, place]
    return total.view(1, -1)[:, :n]


def _ring_chunk(n: int, workers: int, item_bytes: int) -> int:
    """Return how many values gloo makes a chunk of, one per worker: two segments or more."""
    segments = max(-(-n * item_bytes // _SEGMENT_BYTES), 2 * workers)
    per_worker = -(-segments // workers)
    return per_worker * -(-n // (per_worker * workers))


def reduce_rows(x: Tensor, op: Reduction) -> Tensor:
    if op == "sum":
        return x.sum(0, keepdim=True, dtype=x.dtype)
    if op == "and":
        rows = x[:1].clone()
        for row in x[1:]:
            rows &= row
        return rows
    return x.amax(0, keepdim=True) if op == "max" else x.amin(0, keepdim=True)
