"""Steps of a method on small gradients, which are the same for virtual and real workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.core.comm.collectives import Comm, Lengths
from gcbench.core.comm.meter import wire_bits
from gcbench.core.compressor import Compressor, Grads, State, flatten
from gcbench.core.methods.ef21 import EF21
from gcbench.core.methods.loco import LoCo
from gcbench.core.wrappers.build import Feedback
from gcbench.core.wrappers.virtual import Stepper, aggregate, is_direction, parts_of
from gcbench.core.wrappers.wrappers import ErrorFeedback

WORKERS = 4
STEPS = 3

SHAPES: dict[str, tuple[int, ...]] = {
    "conv": (6, 3, 3, 3),
    "conv bias": (6,),
    "matrix": (10, 13),
    "scalar": (),
    "twin": (10, 13),
    "one": (1,),
    "row": (1, 37),
}


def gradients(
    workers: Sequence[int], number: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> Grads:
    """Return the workers' gradients of one step, `{name: [w, *shape]}`.

    Each worker's are drawn from its own generator, plus a part that all workers share.
    """
    grads: Grads = {}
    for i, (name, shape) in enumerate(shapes.items()):
        common = _normal(shape, 10_000 + i)
        of_workers = [_normal(shape, 1000 * worker + 100 * number + i) for worker in workers]
        grads[name] = torch.stack([common + x for x in of_workers]) * 0.1
    return grads


def _normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def shapes_of(grads: Grads) -> dict[str, tuple[int, ...]]:
    return {k: tuple(g.shape[1:]) for k, g in grads.items()}


def flat(grads: Grads) -> Tensor:
    """Return all tensors concatenated, `[w, n]` in float64."""
    return flatten(grads).double()


class Trace(NamedTuple):
    """The updates, states and bits of some steps in one process."""

    updates: list[Grads]
    residuals: list[list[Grads]]  # by step and layer of the state, of each worker
    sent_bits: list[int]
    received_bits: list[int]


def trace(compressor: Compressor, comm: Comm, steps: int = STEPS) -> Trace:
    """Take some steps on `gradients`, and return their trace in this process."""
    state = State()
    updates, residuals = [], []
    for number in range(steps):
        out = aggregate(
            compressor, gradients(comm.local, number), number=number, state=state, comm=comm
        )
        state = out.state
        updates.append(out.update)
        out.sent()  # error feedback would ask for it; it may change nothing
        residuals.append([layer.per_worker for layer in state.layers()])
    return Trace(updates, residuals, comm.meter.sent_bits, comm.meter.received_bits)


Seen = dict[tuple[str, torch.dtype], int]
"""The bits of one worker by the collective and the type in which they travel."""


def observe() -> tuple[Comm, Seen]:
    """Return a Comm of virtual workers, and a record of what will be sent between them."""
    seen: Seen = {}

    def note(collective: str, tensors: Sequence[Tensor], lengths: Lengths) -> None:
        for t, n in zip(tensors, lengths, strict=True):
            values = t[0].numel() if n is None else int(n[0])
            key = collective.removesuffix(" sum"), t.dtype
            seen[key] = seen.get(key, 0) + 8 * t.element_size() * values

    return Comm(WORKERS, listener=note), seen


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


class Measured(NamedTuple):
    """The columns of a measured method in `gcbench methods`, as they are printed."""

    bits: str
    ratio: str
    received_ratio: str
    promises: str


MEASURED = ["bits per value", "x fewer than fp32", "x fewer received", "promises"]


def measure_method(compressor: Compressor) -> Measured:
    sent = wire(compressor)
    promises = "\n".join(promises_of(compressor))
    return Measured(
        "\n".join(sent.lines), f"{sent.ratio:.1f}", f"{sent.received_ratio:.1f}", promises
    )


def promises_of(compressor: Compressor) -> list[str]:
    """Return the promises of the method by itself, and its kind of error feedback."""
    feedback = next((p for p in parts_of(compressor) if isinstance(p, Feedback)), None)
    properties = (feedback.inner if feedback else compressor).properties
    promises = {
        "exact": properties.exact,
        "unbiased": properties.unbiased,
        "contractive": properties.contractive,
        "mean-linear": properties.mean_linear,
        "divisible": properties.divisible,
        "no scale": is_direction(compressor),
        "global scope": properties.scope == "global",
        "+ residual": isinstance(feedback, ErrorFeedback),
        "+ EF21": isinstance(feedback, EF21),
        "+ 8-bit residual": isinstance(feedback, LoCo),
    }
    return [name for name, holds in promises.items() if holds]


def notes_of(overrides: str) -> list[str]:
    """Return what to know about the columns."""
    shapes = ", ".join(" x ".join(map(str, shape)) for shape in REFERENCE.values())
    return [
        f"Measured with {overrides or 'all knobs as they are'}, in the first compressed step of "
        f"{WORKERS} workers, on {VALUES:,} values ({shapes}). What a worker receives is compared "
        "with an all-reduce of fp32 values.",
        "Promises are those of the method by itself; gcbench check compressor=NAME tests them.",
    ]
