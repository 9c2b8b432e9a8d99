"""The effects of a value that is not finite, in any layout."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from gloo_pool import Process

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor
from gcbench.core.wrappers.virtual import aggregate
from gcbench.runner.check.steps import WORKERS, gradients
from gcbench.runner.train.finite import KINDS, FirstBad

# These methods send a few values that are drawn at random.
SOME_VALUES = ("random_k", "random_block", "global_randk", "global_randk_multiscale")


class Seen(NamedTuple):
    update: bool  # whether it is not finite
    residuals: list[int]  # workers of this process whose residual is not finite


def step_effects(
    compressor: Compressor, comm: Comm, value: float, worker: int, everywhere: bool
) -> Seen:
    """Return what a non-finite `value` in the gradient of `worker` does in one step.

    The value is in one place of a matrix, or `everywhere` in it.
    """
    grads = gradients(comm.local, 0)
    if worker in comm.local:
        matrix = grads["matrix"][worker - comm.local.start]
        matrix[... if everywhere else (4, 7)] = value
    first_bad = FirstBad.none(len(comm.local), torch.device("cpu"))
    first_bad.note_exchange(0, aggregate(compressor, grads, comm=comm))
    noted = [(KINDS[kind], k) for _, kind, k in first_bad.collect(comm.local)]
    return Seen(
        any(kind == "update" for kind, _ in noted), [k for kind, k in noted if kind == "residual"]
    )


def step_effects_over_gloo(
    process: Process, compressors: dict[Any, Compressor], value: float, worker: int
) -> dict[Any, Seen]:
    return {
        key: step_effects(compressor, process.comm(WORKERS), value, worker, key[0] in SOME_VALUES)
        for key, compressor in compressors.items()
    }
