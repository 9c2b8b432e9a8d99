"""The bits that a method sends, measured."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gcbench.check.steps import WORKERS, observe
from gcbench.compressors import Compressor
from gcbench.compressors.virtual import Stepper

# Shapes of parameters that networks have, small enough to be quick.
REFERENCE = {"conv": (256, 128, 3, 3), "matrix": (512, 512), "bias": (512,)}
VALUES = sum(torch.Size(shape).numel() for shape in REFERENCE.values())
SHORT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Wire(NamedTuple):
    """The bits per value that a worker sends."""

    bits_per_value: float
    parts: dict[tuple[str, str], float]  # the same, by type of numbers and collective

    @property
    def ratio(self) -> float:
        return 32 / self.bits_per_value

    @property
    def lines(self) -> list[str]:
        return [f"{bits:5.3f} {kind} {how}" for (kind, how), bits in self.parts.items()]


def wire(compressor: Compressor) -> Wire:
    """Return the bits that each of 4 workers sends in the first step that is compressed."""
    comm, seen = observe()
    generator = torch.Generator().manual_seed(0)
    grads = {k: torch.randn(WORKERS, *s, generator=generator) for k, s in REFERENCE.items()}
    Stepper(compressor, grads, comm).step()
    parts: dict[tuple[str, str], float] = {}
    for (how, dtype), bits in seen.items():
        key = SHORT.get(dtype, "codes"), how
        parts[key] = parts.get(key, 0) + bits / VALUES
    return Wire(comm.meter.sent_bits[0] / VALUES, parts)
