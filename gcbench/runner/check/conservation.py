"""The checks of many steps: error feedback loses nothing, and a quadratic function is minimized."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gcbench.core.compressor import Compressor, Grads, State
from gcbench.core.exchange.gather import ScatterExchange
from gcbench.core.methods.matrices import SmallTensorsWhole, StacksOfMatrices
from gcbench.core.wrappers.virtual import aggregate, parts_of
from gcbench.core.wrappers.wrappers import CheckedGradients, ErrorFeedback
from gcbench.runner.check.contract import demand, largest_sent
from gcbench.runner.check.promises import rounding_of_sums
from gcbench.runner.check.steps import WORKERS, flat

SAME_STEPS = 60
# They are below, at and above usual ranks and sizes of buckets. None has so many values that the
# largest 1/64 of them would seldom be sent in these steps.
SAME_SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "vector": (7,),
    "1 x 1": (1, 1),
    "2 x 2": (2, 2),
    "4 x 4": (4, 4),
    "8 x 8": (8, 8),
    "row": (1, 9),
    "column": (9, 1),
    "wide": (3, 16),
    "tall": (16, 3),
    "convolution": (4, 2, 3, 2),
    "stack": (3, 4, 4),
}
Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]
SAME_KINDS: dict[str, Draw] = {
    "one value": lambda shape, generator: torch.full(shape, 0.7),
    "rank 1": lambda shape, generator: _outer(shape, generator),
    "one row": lambda shape, generator: _first_row(torch.randn(shape, generator=generator)),
    "any values": lambda shape, generator: torch.randn(shape, generator=generator),
}
HUGE, TINY = 1e30, 1e-30
GROWTH = 1.7  # 2 is linear growth; 1.4 is that of what top_k leaves out, one value of 64 a step
CHANCE = 5.0  # standard deviations


def _outer(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return the product of a column and a row, as a layer's gradient for one sample is."""
    rows, columns = shape[0] if shape else 1, torch.Size(shape[1:]).numel()
    column, row = (torch.randn(n, generator=generator) for n in (rows, columns))
    return torch.outer(column, row).view(shape)


def _first_row(x: Tensor) -> Tensor:
    rows = x.view(len(x) if x.dim() else 1, -1)
    return (rows * (torch.arange(len(rows)) == 0).unsqueeze(1)).view(x.shape)


def check_conserves(compressor: Compressor) -> str | None:
    """Check that updates add up to gradients that stay the same for 60 steps.

    With error feedback, which is put around a method that promises to be contractive, nothing is
    lost: updates and the mean residual are the gradients, and that residual stops growing. Without,
    updates of a method that promises to be unbiased are off by chance only. Returns a remark if
    neither is promised.
    """
    around = _with_residual(compressor)
    if around is None and not compressor.properties.unbiased:
        return "nothing to add up: neither contractive nor unbiased, or another memory"
    largest = largest_sent(compressor)
    scaled = {"any values": SAME_KINDS["any values"]}
    for scale, kinds in (
        (1.0, SAME_KINDS),
        (min(HUGE, largest / 1e3), scaled),
        (max(TINY, 1e3 / largest), scaled),
    ):
        grads = _gradients(kinds, scale)
        if around is None:
            _check_chance(compressor, grads)
        else:
            _check_residual(around, grads)
    return None


def _with_residual(compressor: Compressor) -> Compressor | None:
    """Return a compressor whose outermost state is the residual of everything that is not sent."""
    parts = [*parts_of(compressor)]
    if any(isinstance(part, ScatterExchange) and part.code_means for part in parts):
        return None  # the residual of the means belongs to shards
    if compressor.properties.contractive:
        return ErrorFeedback(compressor)
    for part in parts:
        if isinstance(part, ErrorFeedback):
            whole = part.alpha == part.beta == 1 and part.inner.properties.contractive
            return compressor if whole else None
        if not isinstance(part, (CheckedGradients, SmallTensorsWhole, StacksOfMatrices)):
            return None
    return None


def _check_residual(compressor: Compressor, grads: Grads) -> None:
    """Check that nothing is lost and nothing stays behind; all gradients lie side by side."""
    rounding = max(1e-5, rounding_of_sums(compressor))
    state, residuals = State(), []
    total = torch.zeros(1, dtype=torch.float64)
    for number in range(SAME_STEPS):
        out = aggregate(compressor, grads, number=number, state=state)
        state, total = out.state, total + flat(out.update)[0]
        kept = {k: state.per_worker.get(k, torch.zeros_like(g)) for k, g in grads.items()}
        residuals.append(flat(kept).mean(0))
    mean, all_residuals = flat(grads).mean(0), torch.stack(residuals)
    lost = total + residuals[-1] - SAME_STEPS * mean
    # Every step rounds a residual, which may be much larger than a gradient.
    summed = SAME_STEPS * mean.abs() + all_residuals.abs().sum(0)
    columns = {"all tensors": [mean, lost, summed, all_residuals]}
    if compressor.properties.scope == "tensor":
        columns = _each(grads, mean, lost, summed, all_residuals)
    for name, (one, off, allowed, residual) in columns.items():
        what = f"{SAME_STEPS} equal gradients of {name}, with error feedback: "
        demand(
            off.norm() <= rounding * allowed.norm(),
            f"{what}updates and the mean residual are off their sum by "
            f"{float(off.norm() / one.norm()):.2g} of one",
        )
        norms = residual.norm(dim=1)
        before, after = norms[: SAME_STEPS // 2].max(), norms[SAME_STEPS // 2 :].max()
        demand(
            after <= GROWTH * before + one.norm(),
            f"{what}the mean residual is {float(norms[-1] / one.norm()):.3g} times one, and still "
            "growing: a part of the gradient is never sent",
        )


def _check_chance(compressor: Compressor, grads: Grads) -> None:
    """Check that the sum of errors is that of independent ones: steps, not steps squared."""
    updates, state = [], State()
    for number in range(SAME_STEPS):
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        updates.append(flat(out.update)[0])
    mean = flat(grads).mean(0)
    for name, (one, errors) in _each(grads, mean, torch.stack(updates) - mean).items():
        chance = errors.square().sum().sqrt() + 1e-5 * SAME_STEPS * one.norm()
        off = errors.sum(0).norm()
        demand(
            off <= CHANCE * chance,
            f"{SAME_STEPS} equal gradients of {name}, without error feedback: the sum of their "
            f"updates is {float(off / chance):.2g} times as far off as by chance",
        )


def _each(grads: Grads, *columns: Tensor) -> dict[str, list[Tensor]]:
    """Return the part of every `[..., n]` that belongs to a tensor, by name."""
    parts = [g[0].numel() for g in grads.values()]
    return {
        name: list(own)
        for name, *own in zip(grads, *(x.split(parts, -1) for x in columns), strict=True)
    }


def _gradients(kinds: dict[str, Draw], scale: float) -> Grads:
    """Return the gradients of two workers, which differ."""
    generator = torch.Generator().manual_seed(0)
    times = "" if scale == 1 else f", times {scale:g}"
    grads = {
        f"{name} ({kind}{times})": scale * draw(shape, generator)
        for kind, draw in kinds.items()
        for name, shape in SAME_SHAPES.items()
    }
    return {k: torch.stack([0.5 * g, 1.5 * g]) for k, g in grads.items()}


SHAPES = {"matrix": (24, 16), "vector": (40,)}
STEPS = 100
RATES = (0.03, 0.1, 0.25)
LONGER, SLOWER = 1000, (0.001, 0.003, 0.01)  # one that sends few of 384 values, or rows, in a step
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


def nearness(compressor: Compressor, lr: float, steps: int = STEPS) -> float:
    """Return the distance to the minimizer after all steps, as a fraction of the initial one."""
    quadratic, state = Quadratic(), State()
    x = {k: torch.zeros(1, *shape) for k, shape in SHAPES.items()}
    start = quadratic.distance(x)
    for number in range(steps):
        out = aggregate(compressor, quadratic.gradients(x), number=number, state=state)
        state = out.state
        x = {k: v - lr * out.update[k] for k, v in x.items()}
    return quadratic.distance(x) / start


def check_descends(compressor: Compressor) -> str:
    """Check that steps at the best rate lead near the minimum, and return how near."""
    for steps, rates in ((STEPS, RATES), (LONGER, SLOWER)):
        reached = {lr: nearness(compressor, lr, steps) for lr in rates}
        lr = min(reached, key=lambda rate: reached[rate])
        if reached[lr] < NEARNESS:
            break
    demand(
        reached[lr] < NEARNESS,
        f"{STEPS} steps on a quadratic leave more than {NEARNESS} of the distance to its minimum "
        f"at the rates {', '.join(map(str, RATES))}, and {LONGER} leave {reached[lr]:.3g} at {lr}",
    )
    return f"{reached[lr]:.2g} of the distance is left after {steps} steps of lr={lr}"
