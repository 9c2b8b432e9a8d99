"""Checks that virtual workers and real processes have the same updates, states and bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gcbench.check.contract import demand
from gcbench.check.promises import rounding_of_sums
from gcbench.check.steps import STEPS, Trace, flat
from gcbench.compressors import Compressor, Grads


def check_updates_agree(compressor: Compressor, virtual: Trace, processes: Sequence[Trace]) -> None:
    """Check that real processes apply the updates of virtual workers.

    They agree to the bit if no floats are summed, else up to the order of sums and the rounding of
    the type that is summed.
    """
    apart = [
        (number, real, expected)
        for process in processes
        for number, (real, expected) in enumerate(
            zip(process.updates, virtual.updates, strict=True)
        )
        if not equal(real, expected)
    ]
    if not apart:
        return
    rounding = rounding_of_sums(compressor)
    for number, real, expected in apart:
        sentence = (
            f"step {number}: real processes give another update than virtual workers do (a "
            "method sees each worker's row)"
        )
        demand(rounding > 0, sentence)
        for name in expected:
            error = (real[name].double() - expected[name].double()).norm()
            demand(
                error <= max(1e-5, 2.5 * rounding) * expected[name].double().norm(),
                f"{sentence}, of {name}",
            )


def equal(a: Grads, b: Grads) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def check_replicas(processes: Sequence[Trace]) -> None:
    """Check that all ranks apply the same updates."""
    first, *others = processes
    for other in others:
        for number in range(STEPS):
            demand(
                equal(other.updates[number], first.updates[number]),
                f"step {number}: ranks apply different updates; an update is computed from what "
                "all workers have",
            )


def check_residuals(virtual: Trace, processes: Sequence[Trace]) -> None:
    """Check that real workers keep the same states as virtual ones."""
    scale = max(float(flat(update).abs().max()) for update in virtual.updates)
    for number in range(STEPS):
        for depth, expected in enumerate(virtual.residuals[number]):
            for name, rows in expected.items():
                real = torch.cat([process.residuals[number][depth][name] for process in processes])
                close = real.shape == rows.shape and torch.allclose(
                    real, rows, rtol=1e-4, atol=1e-5 * scale
                )
                demand(
                    close,
                    f"step {number}: real workers keep another state of {name} than virtual "
                    "workers do",
                )


def check_bits(virtual: Trace, processes: Sequence[Trace]) -> None:
    """Check that the same bits are counted for real and virtual workers, and more than none."""
    for what in ("sent_bits", "received_bits"):
        real = [bits for process in processes for bits in getattr(process, what)]
        expected = getattr(virtual, what)
        demand(real == expected, f"real workers count {what}={real}, virtual ones {expected}")
    demand(min(virtual.sent_bits) > 0, "a worker sends nothing: what it shares goes through comm")
