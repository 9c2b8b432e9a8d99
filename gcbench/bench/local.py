"""What one worker does, without a network: encode, decode-and-add, and the whole aggregation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import torch

from gcbench.bench.inputs import Input, Shapes
from gcbench.bench.timing import Timing, Work, paired
from gcbench.comm import Comm
from gcbench.compressors import Codec, Compressor, State, Step, flattened, parts_of

Row = dict[str, Any]


def measure(compressor: Compressor, given: Input, rounds: int) -> Iterator[Row]:
    x = torch.cat(flattened(given.grads), dim=1)
    for part in parts_of(compressor):
        if hasattr(part, "decode_add"):
            yield from _codec_rows(cast(Codec, part), given, rounds)
            break  # the codec as it is sent; one inside it is a part of that
    yield _row("aggregate", given, paired(_aggregation(compressor, given), x, rounds))


def _codec_rows(codec: Codec, given: Input, rounds: int) -> Iterator[Row]:
    segments = tuple(torch.Size(s).numel() for s in given.shapes.values())
    x = codec.reorder(flattened(given.grads), segments)
    step = _step(given.shapes)
    noise = step.noise("codec", dict(zip(given.shapes, segments, strict=True)), x.device)
    message = codec.encode(x, segments, noise)
    out = torch.zeros_like(x)
    yield _row("encode", given, paired(lambda: codec.encode(x, segments, noise), x, rounds))
    yield _row(
        "decode-and-add", given, paired(lambda: codec.decode_add(message, segments, out), x, rounds)
    )


def _aggregation(compressor: Compressor, given: Input) -> Work:
    """Step after step, with the state that they leave."""
    comm, state, first, number = Comm(1), State(), _step(given.shapes), 0

    def aggregate() -> None:
        nonlocal state, number
        state = compressor.aggregate(given.grads, state, comm, replace(first, number=number)).state
        number += 1

    return aggregate


def _step(shapes: Shapes) -> Step:
    """The first."""
    sizes = [torch.Size(s).numel() for s in shapes.values()]
    return Step(0, 1, range(1), dict(zip(shapes, accumulate(sizes, initial=0), strict=False)))


def _row(part: str, given: Input, timing: Timing) -> Row:
    return {
        "part": part,
        "input": given.name,
        "values": given.values,
        "milliseconds": 1e3 * timing.seconds,
        "gb_per_second": 4 * given.values / timing.seconds / 1e9,
        "memcpy_gb_per_second": 4 * given.values / timing.memcpy_seconds / 1e9,
        "of_memcpy": timing.ratio,
    }
