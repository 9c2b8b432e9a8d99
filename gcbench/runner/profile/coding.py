"""Methods on gradients of a user's loop: their seconds on this device, and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import torch

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Compressor,
    Goal,
    Grads,
    State,
    Step,
    flatten,
    offsets_of,
    sizes_of,
    vnmse,
)
from gcbench.runner.bench.local import Input, measure
from gcbench.runner.predict.job import make
from gcbench.runner.predict.measure import PARTS

ROUNDS = 3
METHODS = (
    "none",
    "bf16",
    "mxfp8",
    "qsgd bits=8",
    "qsgd",
    "eden bits=2",
    "scaled_sign error_feedback=true",
    "onebit",
    "powersgd rank=2",
    "powersgd rank=4",
    "top_k fraction=0.015625 index=auto",
)


class Coded(NamedTuple):
    """A method as it is typed, its seconds for a gradient, and its error."""

    typed: str
    aggregate_seconds: float  # encoding, and decoding one message
    decode_seconds: float  # decoding each further message
    vnmse: float  # |y - x|^2 / |x|^2 of one worker's gradient


def code(typed: str, gradients: Sequence[Grads]) -> Coded:
    """Return what a method takes for the first gradients, and its mean error on all of them."""
    compressor = make(typed)
    rows = {
        PARTS[row["part"]]: row["milliseconds"] / 1e3
        for row in measure(compressor, Input("gradient", gradients[0]), ROUNDS)
        if row["part"] in PARTS
    }
    error = mean(_vnmse(compressor, one) for one in gradients)
    return Coded(typed, rows["aggregate_seconds"], rows.get("decode_seconds", 0.0), error)


@torch.no_grad()
def _vnmse(compressor: Compressor, gradients: Grads) -> float:
    # A late step: methods that begin with uncompressed steps compress in it.
    step = Step(2**20, 1, range(1), offsets_of(sizes_of(gradients)))
    copies = {name: g.clone() for name, g in gradients.items()}
    out = compressor.aggregate(copies, State(), Comm(1), step)
    goal = out.goal() if out.goal else Goal(gradients, out.update)
    return float(vnmse(flatten(goal.got), flatten(goal.wanted)))
