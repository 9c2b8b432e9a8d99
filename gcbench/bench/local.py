"""The work of one worker without a network: encode, decode-and-add, and the whole aggregation."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gcbench.bench.inputs import Input
from gcbench.bench.timing import Row, Timing, cpu_beside_one_thread, time_beside_copy
from gcbench.comm.collectives import Comm
from gcbench.comm.transport import MirrorTransport
from gcbench.compressors import Codec, Compressor, Step, flatten, offsets_of, parts_of, sizes_of
from gcbench.compressors.virtual import Stepper


def measure(
    compressor: Compressor, gradients: Input, rounds: int, workers: int = 1
) -> Iterator[Row]:
    """Yield a row for each part of the work, timed beside a copy of the gradients' bytes.

    With more `workers`, a last row has the aggregation of as many messages as they would send.
    """
    x = flatten(gradients.grads)
    for part in parts_of(compressor):
        if isinstance(part, Codec):
            yield from _codec_rows(part, gradients, rounds)
            break  # the codec whose messages are sent; any codec inside it is a part of it
    for count in dict.fromkeys((1, workers)):
        comm = Comm(count, MirrorTransport(0, count) if count > 1 else None)
        stepper = Stepper(compressor, gradients.grads, comm)
        part_of_many = f", {count} workers" if count > 1 else ""
        timing = time_beside_copy(stepper.step, x, rounds)
        row = _row(f"aggregate{part_of_many}", gradients, timing)
        yield {**row, "cpu_of_one_thread": cpu_beside_one_thread(stepper.step, x.device, rounds)}


def _codec_rows(codec: Codec, gradients: Input, rounds: int) -> Iterator[Row]:
    sizes = sizes_of(gradients.grads)
    segments = tuple(sizes.values())
    x = flatten(gradients.grads)
    noise = Step(0, 1, range(1), offsets_of(sizes)).noise("codec", sizes, x.device)
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
