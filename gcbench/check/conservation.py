"""The check that error feedback loses nothing of gradients that stay the same for many steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gcbench.check.contract import demand, largest_sent
from gcbench.check.promises import rounding_of_sums
from gcbench.check.steps import flat
from gcbench.compressors import Compressor, Grads, State, parts_of
from gcbench.compressors.exchange import ScatterExchange
from gcbench.compressors.virtual import aggregate
from gcbench.compressors.wrappers import CheckedGradients, ErrorFeedback, SmallTensorsWhole

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
GROWTH = 1.7  # linear growth of a residual is 2; 1.4 is that of the 63 values that top_k leaves out


def _outer(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return the product of a column and a row, as a layer's gradient for one sample is."""
    rows, columns = shape[0] if shape else 1, torch.Size(shape[1:]).numel()
    column, row = (torch.randn(n, generator=generator) for n in (rows, columns))
    return torch.outer(column, row).view(shape)


def _first_row(x: Tensor) -> Tensor:
    rows = x.view(len(x) if x.dim() else 1, -1)
    return (rows * (torch.arange(len(rows)) == 0).unsqueeze(1)).view(x.shape)


def check_conserves(compressor: Compressor) -> str | None:
    """Check that updates and residuals add up to gradients that stay the same for 60 steps.

    The mean residual must not grow all the time either. Only methods that promise to be contractive
    can do this; error feedback is put around them unless they have it. Returns a remark if there
    was nothing to check.
    """
    around = _with_residual(compressor)
    if around is None:
        return "nothing to check, as this is not contractive, or remembers more than a residual"
    largest = largest_sent(compressor)
    _check_same(around, SAME_KINDS, 1.0)
    for scale in (min(HUGE, largest / 1e3), max(TINY, 1e3 / largest)):
        _check_same(around, {"any values": SAME_KINDS["any values"]}, scale)
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
        if not isinstance(part, (CheckedGradients, SmallTensorsWhole)):
            return None
    return None


def _check_same(compressor: Compressor, kinds: dict[str, Draw], scale: float) -> None:
    """Check one run of steps, in which all kinds of gradients are tensors side by side."""
    grads = _gradients(kinds, scale)
    rounding = max(1e-5, rounding_of_sums(compressor))
    state, total = State(), torch.zeros(1, dtype=torch.float64)
    residuals = []
    for number in range(SAME_STEPS):
        out = aggregate(compressor, grads, number=number, state=state)
        state, total = out.state, total + flat(out.update)[0]
        kept = {k: state.per_worker.get(k, torch.zeros_like(g)) for k, g in grads.items()}
        residuals.append(flat(kept).mean(0))
    mean = flat(grads).mean(0)
    lost = (total + residuals[-1] - SAME_STEPS * mean).abs()
    # Every step rounds a residual, which may be much larger than a gradient.
    summed = SAME_STEPS * mean.abs() + torch.stack(residuals).abs().sum(0)
    parts = [g[0].numel() for g in grads.values()]
    each = zip(grads, *(x.split(parts, -1) for x in (mean, lost, summed)), strict=True)
    norms = [x.norm(dim=1) for x in torch.stack(residuals).split(parts, 1)]
    for (name, g, off, allowed), norm in zip(each, norms, strict=True):
        what = f"after {SAME_STEPS} equal gradients of {name}, with error feedback, "
        demand(
            off.norm() <= rounding * allowed.norm(),
            f"{what}updates and the mean residual are off the sum of the gradients by "
            f"{float(off.norm() / g.norm()):.2g} of one",
        )
        half, one = SAME_STEPS // 2, g.norm()
        demand(
            norm[half:].max() <= GROWTH * norm[:half].max() + one,
            f"{what}the mean residual is {float(norm[-1] / one):.3g} times as large as one, and "
            "grows: a part of the gradient is never sent",
        )


def _gradients(kinds: dict[str, Draw], scale: float) -> Grads:
    """Return the gradients of two workers, which differ."""
    generator = torch.Generator().manual_seed(0)
    grads = {
        f"{name} ({kind}{f', times {scale:g}' if scale != 1 else ''})": scale * draw(shape, generator)
        for kind, draw in kinds.items()
        for name, shape in SAME_SHAPES.items()
    }
    return {k: torch.stack([0.5 * g, 1.5 * g]) for k, g in grads.items()}
