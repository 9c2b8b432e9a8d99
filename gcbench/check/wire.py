"""The bits that a method sends, measured."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gcbench.check.steps import WORKERS, observe
from gcbench.comm.network import wire_bits
from gcbench.compressors import Compressor
from gcbench.compressors.virtual import Stepper

# Shapes of parameters that networks have, small enough to be quick.
REFERENCE = {"conv": (256, 128, 3, 3), "matrix": (512, 512), "bias": (512,)}
VALUES = sum(torch.Size(shape).numel() for shape in REFERENCE.values())
SHORT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Wire(NamedTuple):
    """The bits per value that each of `WORKERS` workers sends, and those that it receives."""

    bits_per_value: float
    received_per_value: float
    parts: dict[tuple[str, str], float]  # the same, by type of numbers and collective

    @property
    def ratio(self) -> float:
        return 32 / self.bits_per_value

    @property
    def received_ratio(self) -> float:
        """Return the bits received in an fp32 all-reduce over those received."""
        return wire_bits("all_reduce", 32, WORKERS) / self.received_per_value

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
    meter = comm.meter
    return Wire(meter.sent_bits[0] / VALUES, meter.wire_bits[0] / VALUES, parts)
