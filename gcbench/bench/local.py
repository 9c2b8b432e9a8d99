"""The work of one worker without a network: encode, decode-and-add, and the whole aggregation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from gcbench.bench.inputs import Input, Shapes
from gcbench.bench.timing import Timing, Work, time_beside_copy
from gcbench.comm import Comm
from gcbench.compressors import (
    Codec,
    Compressor,
    State,
    Step,
    flatten,
    offsets_of,
    parts_of,
)

Row = dict[str, Any]


def measure(compressor: Compressor, gradients: Input, rounds: int) -> Iterator[Row]:
    """Yield a row for each part of the work, beside a copy of the gradients' bytes."""
    x = flatten(gradients.grads)
    for part in parts_of(compressor):
        if isinstance(part, Codec):
            yield from _codec_rows(part, gradients, rounds)
            break  # the codec as it is sent; one inside it is a part of that
    yield _row(
        "aggregate", gradients, time_beside_copy(_aggregation(compressor, gradients), x, rounds)
    )


def _codec_rows(codec: Codec, gradients: Input, rounds: int) -> Iterator[Row]:
    segments = tuple(torch.Size(s).numel() for s in gradients.shapes.values())
    x = flatten(gradients.grads)
    step = _first_step(gradients.shapes)
    noise = step.noise("codec", dict(zip(gradients.shapes, segments, strict=True)), x.device)
    message = codec.encode(x, segments, noise)
    out = torch.zeros_like(x)
    yield _row(
        "encode", gradients, time_beside_copy(lambda: codec.encode(x, segments, noise), x, rounds)
    )
    yield _row(
        "decode-and-add",
        gradients,
        time_beside_copy(lambda: codec.decode_add(message, segments, out), x, rounds),
    )


def _aggregation(compressor: Compressor, gradients: Input) -> Work:
    """Return a function that takes step after step, each with the state of the one before."""
    comm, state, first, number = Comm(1), State(), _first_step(gradients.shapes), 0

    def aggregate() -> None:
        nonlocal state, number
        state = compressor.aggregate(
            gradients.grads, state, comm, replace(first, number=number)
        ).state
        number += 1

    return aggregate


def _first_step(shapes: Shapes) -> Step:
    return Step(0, 1, range(1), offsets_of({k: math.prod(s) for k, s in shapes.items()}))


def _row(part: str, gradients: Input, timing: Timing) -> Row:
    return {
        "part": part,
        "input": gradients.name,
        "values": gradients.values,
        "milliseconds": 1e3 * timing.seconds,
        "gb_per_second": 4 * gradients.values / timing.seconds / 1e9,
        "memcpy_gb_per_second": 4 * gradients.values / timing.memcpy_seconds / 1e9,
        "of_memcpy": timing.ratio,
    }
