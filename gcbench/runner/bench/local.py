"""The work of one worker without a network: encode, decode-and-add, and the whole aggregation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.core.codec import Codec
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import MirrorTransport
from gcbench.core.compressor import Compressor, Grads, Step, flatten, offsets_of, sizes_of
from gcbench.core.wrappers.virtual import Stepper, parts_of
from gcbench.runner.bench.timing import Row, Timing, cpu_beside_one_thread, time_beside_copy
from gcbench.runner.records.gradients import read_gradients


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
    decoder, out = codec.drawing(noise), torch.zeros_like(x)
    yield _row(
        "encode", gradients, time_beside_copy(lambda: codec.encode(x, segments, noise), x, rounds)
    )
    yield _row(
        "decode-and-add",
        gradients,
        time_beside_copy(lambda: decoder.decode_add(message, segments, out), x, rounds),
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


Shapes = Mapping[str, tuple[int, ...]]
InputOf = Callable[[torch.device, int], "Input"]  # arguments: a device and a worker


class Input(NamedTuple):
    """One worker's gradients, `[1, ...]` each, and the name of their distribution or file."""

    name: str
    grads: Grads

    @property
    def values(self) -> int:
        return sum(g.numel() for g in self.grads.values())

    @property
    def shapes(self) -> Shapes:
        return {k: tuple(g.shape[1:]) for k, g in self.grads.items()}


def _normal(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, generator=generator)


def _laplace(n: int, generator: torch.Generator) -> Tensor:
    return torch.empty(n).exponential_(generator=generator) * (
        torch.randint(0, 2, (n,), generator=generator) * 2 - 1
    )


def _student(n: int, generator: torch.Generator) -> Tensor:
    """Return draws of Student's t with 3 degrees of freedom: heavier tails than gradients have."""
    squares = torch.zeros(n)
    for _ in range(3):
        squares += torch.randn(n, generator=generator).square_()
    return torch.randn(n, generator=generator) / torch.sqrt(squares / 3)


DRAWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "normal": _normal,
    "laplace": _laplace,
    "student": _student,
}


def draw_input(name: str, shapes: Shapes, device: torch.device, worker: int = 0) -> Input:
    """Return a worker's gradients drawn from a distribution of DRAWS, with a scale of 0.01."""
    generator = torch.Generator().manual_seed(worker)
    grads = {
        k: DRAWS[name](torch.Size(s).numel(), generator).view(1, *s).to(device) * 1e-2
        for k, s in shapes.items()
    }
    return Input(name, grads)


def read_input(path: Path, device: torch.device, worker: int = 0) -> Input:
    """Return a worker's gradients from a file that trainer.record_gradients wrote.

    If the file has fewer workers, several workers get the same gradients.
    """
    recorded = read_gradients(path)
    row = worker % len(recorded.gradients)
    tensors = recorded.tensors()
    return Input(path.stem, {k: g[row : row + 1].to(device) for k, g in tensors.items()})


def one_matrix(values: int) -> Shapes:
    """Return the shape of a tensor of about `values` values, as square as powers of two allow.

    Low-rank methods need a matrix.
    """
    columns = 1 << (values.bit_length() // 2)
    return {"gradient": (max(1, values // columns), columns)}
