"""Dion2: rows of a momentum, exchanged and made orthonormal, as in the paper's algorithm."""

from __future__ import annotations

import math

import torch
from method_cases import aggregate, build_method
from nightly import each
from torch import Tensor

from gcbench.core.compressor import State

MU = 0.9


def orthonormal(x: Tensor) -> Tensor:
    """Return what five steps of Newton-Schulz make of a matrix, by its singular values."""
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    s = s / x.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ s.diag() @ v


@each(
    ("shape", "fraction"),
    [((6, 10), 0.25), ((13, 7), 0.5), ((6, 5, 3, 3), 0.34), ((4, 9), 1.0)],
)
def test_updates_and_momenta_are_those_of_the_algorithm(
    shape: tuple[int, ...], fraction: float
) -> None:
    """The rows (of the shorter side) with the largest mean 1-norm are sent, and decay."""
    compressor, state = build_method("dion2", fraction=fraction, momentum=MU), State()
    n, m = shape[0], math.prod(shape[1:])
    momenta = torch.zeros(4, n, m, dtype=torch.float64)
    for number in range(4):
        generator = torch.Generator().manual_seed(number)
        grads = {"w": torch.randn(4, *shape, generator=generator)}
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        momenta = momenta + grads["w"].view(4, n, m)
        rows = momenta if n <= m else momenta.mT
        k = math.ceil(fraction * rows.shape[1])
        largest = rows.abs().sum(2).mean(0).argsort(descending=True)[:k]
        update = torch.zeros_like(rows[0])
        update[largest] = (n / m) ** 0.5 * orthonormal(rows.mean(0)[largest])
        rows[:, largest] *= MU
        expected = (update if n <= m else update.mT).float()
        torch.testing.assert_close(out.update["w"].view(n, m), expected, rtol=1e-4, atol=1e-4)
        kept = state.per_worker["w"].view(4, n, m)
        torch.testing.assert_close(kept, momenta.float(), rtol=1e-4, atol=1e-4)
