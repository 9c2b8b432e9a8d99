"""Every choice of conf/compressor minimises a small quadratic with its own settings; a new file is held to it at once."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from method_cases import CHOICES, aggregate, built, composed, flat

from gcbench.compressors import Grads, State

WORKERS, STEPS = 4, 100
SHAPES = {"matrix": (24, 16), "vector": (40,)}


class Case(NamedTuple):
    lr: float
    nearness: float  # of the end to the minimiser, as a share of the start's
    why: str


# The workers' minimisers differ, so that at the common one their gradients, and a quantiser's noise, do not vanish.
# The rate is a fifth of 1 / L; without compression 0.0014 of the first distance is left.
USUAL = Case(0.1, 0.05, "the rule")
ONE_BIT = Case(0.25, 0.07, "one bit and no memory: most of a large value is lost, so the same way takes a larger rate")
UNUSUAL = {
    "bingrad_pb": ONE_BIT,
    "bingrad_b": ONE_BIT,
    "scaled_sign": ONE_BIT,
    "signum": Case(0.03, 0.1, "every step is lr long in every coordinate: it stays within a few lr of the minimiser"),
    "top_k": Case(0.1, 0.15, "sends one value in 64: what the memory adds to the rest is many steps old"),
}


class Quadratic:
    """f_k(x) = 1/2 sum_i h_i (x_i - c_ki)^2 for worker k, h from 0.5 to 2."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.h = {k: 0.5 * 4 ** torch.rand(shape, generator=generator) for k, shape in SHAPES.items()}
        centres = {k: normal(*shape) for k, shape in SHAPES.items()}
        self.centres = {k: c + 0.1 * normal(WORKERS, *c.shape) for k, c in centres.items()}

    def gradients(self, x: Grads) -> Grads:
        return {k: self.h[k] * (x[k] - self.centres[k]) for k in x}

    def distance(self, x: Grads) -> float:
        return float((flat(x) - flat({k: c.mean(0, keepdim=True) for k, c in self.centres.items()})).norm())


def nearness(choice: str, lr: float) -> float:
    settings = {"min_size": 0} if "min_size" in composed(choice) else {}  # else nothing here is large enough to be compressed
    compressor, quadratic, state = built(choice, **settings), Quadratic(), State()
    x = {k: torch.zeros(1, *shape) for k, shape in SHAPES.items()}
    start = quadratic.distance(x)
    for number in range(STEPS):
        out = aggregate(compressor, quadratic.gradients(x), number=number, state=state)
        state = out.state
        x = {k: v - lr * out.update[k] for k, v in x.items()}
    return quadratic.distance(x) / start


@pytest.mark.parametrize("choice", CHOICES)
def test_it_descends_a_quadratic(choice: str) -> None:
    case = UNUSUAL.get(choice, USUAL)
    reached = nearness(choice, case.lr)
    assert reached < case.nearness, (
        f"compressor={choice} with lr={case.lr} came to {reached:.3g} of the first distance in {STEPS} steps, not "
        f"{case.nearness}; if that is right for it, add it to UNUSUAL with a rate, what it reaches, and why"
    )
