"""What a method sends, measured."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gcbench.check.steps import WORKERS, Observer, aggregate
from gcbench.compressors import Compressor

# What networks are made of, small enough to be quick.
REFERENCE = {"conv": (256, 128, 3, 3), "matrix": (512, 512), "bias": (512,)}
VALUES = sum(torch.Size(shape).numel() for shape in REFERENCE.values())


class Wire(NamedTuple):
    bits_per_value: float  # of a worker
    parts: dict[str, dict[str, float]]  # the same by collective and type

    @property
    def ratio(self) -> float:
        return 32 / self.bits_per_value

    def __str__(self) -> str:
        return "; ".join(
            f"{collective} of {' + '.join(f'{bits:.3g} {dtype}' for dtype, bits in types.items())}"
            for collective, types in self.parts.items()
        )


def wire(compressor: Compressor) -> Wire:
    """Of the first step of 4 workers."""
    comm = Observer(WORKERS)
    generator = torch.Generator().manual_seed(0)
    aggregate(compressor, {k: torch.randn(WORKERS, *s, generator=generator) for k, s in REFERENCE.items()}, comm=comm)
    parts: dict[str, dict[str, float]] = {}
    for (collective, dtype), bits in comm.seen.items():
        parts.setdefault(collective, {})[str(dtype).removeprefix("torch.")] = bits / VALUES
    return Wire(comm.meter.sent_bits[0] / VALUES, parts)
