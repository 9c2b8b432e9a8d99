"""A quadratic to minimize with compressed gradients."""

from __future__ import annotations

import torch

from gcbench.check.contract import demand
from gcbench.check.steps import WORKERS, flat
from gcbench.compressors import Compressor, Grads, State
from gcbench.compressors.virtual import aggregate

SHAPES = {"matrix": (24, 16), "vector": (40,)}
STEPS = 100
RATES = (0.03, 0.1, 0.25)
NEARNESS = 0.15  # without compression, 0.0014 of the distance is left at a rate of 0.1


class Quadratic:
    """f_k(x) = 1/2 sum_i h_i (x_i - c_ki)^2 for worker k, with h_i from 0.5 to 2.

    The workers' minimizers differ, so that at the common minimizer their gradients do not vanish,
    nor does a quantizer's noise.
    """

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.h = {
            k: 0.5 * 4 ** torch.rand(shape, generator=generator) for k, shape in SHAPES.items()
        }
        centers = {k: normal(*shape) for k, shape in SHAPES.items()}
        self.centers = {k: c + 0.1 * normal(WORKERS, *c.shape) for k, c in centers.items()}

    def gradients(self, x: Grads) -> Grads:
        return {k: self.h[k] * (x[k] - self.centers[k]) for k in x}

    def distance(self, x: Grads) -> float:
        """Return the distance to the minimizer of the workers' mean."""
        minimizer = {k: c.mean(0, keepdim=True) for k, c in self.centers.items()}
        return float((flat(x) - flat(minimizer)).norm())


def nearness(compressor: Compressor, lr: float) -> float:
    """Return the distance to the minimizer after all steps, as a fraction of the initial one."""
    quadratic, state = Quadratic(), State()
    x = {k: torch.zeros(1, *shape) for k, shape in SHAPES.items()}
    start = quadratic.distance(x)
    for number in range(STEPS):
        out = aggregate(compressor, quadratic.gradients(x), number=number, state=state)
        state = out.state
        x = {k: v - lr * out.update[k] for k, v in x.items()}
    return quadratic.distance(x) / start


def check_descends(compressor: Compressor) -> str:
    """Check that steps at the best rate lead near the minimum, and return how near."""
    reached = {lr: nearness(compressor, lr) for lr in RATES}
    lr = min(reached, key=lambda rate: reached[rate])
    demand(
        reached[lr] < NEARNESS,
        f"{STEPS} steps on a quadratic leave {reached[lr]:.3g} of the distance to its minimum at "
        f"the best of the rates {', '.join(map(str, RATES))}, not {NEARNESS}",
    )
    return f"{reached[lr]:.2g} of the distance is left after {STEPS} steps of lr={lr}"
