"""Checks of what a method's `properties` promise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Compressor,
    Grads,
    State,
    Step,
    flatten_each,
    offsets_of,
    sizes_of,
)
from gcbench.core.wrappers.virtual import aggregate, compressed_share, dense_steps_of, is_direction
from gcbench.core.wrappers.wrappers import ErrorFeedback
from gcbench.runner.check.contract import demand
from gcbench.runner.check.steps import SHAPES, flat, gradients, observe, trace


def rounding_of_sums(compressor: Compressor) -> float:
    """Return the relative rounding of the coarsest float type summed over workers, or 0."""
    return max(
        (eps for collective, eps in _roundings(compressor) if collective == "all_reduce"),
        default=0.0,
    )


def rounding_of_values(compressor: Compressor) -> float:
    """Return the relative rounding of the coarsest float type that is sent, or 0."""
    return max((eps for _, eps in _roundings(compressor)), default=0.0)


def _roundings(compressor: Compressor) -> list[tuple[str, float]]:
    comm, seen = observe()
    trace(compressor, comm)
    return [(name, torch.finfo(dtype).eps) for name, dtype in seen if dtype.is_floating_point]


def check_exact(compressor: Compressor) -> None:
    """Check that an update is the mean of the gradients, up to the rounding of sums."""
    grads = gradients(range(4), 0)
    error = (flat(aggregate(compressor, grads).update)[0] - flat(grads).mean(0)).abs().max()
    allowed = max(1e-6, rounding_of_values(compressor)) * flat(grads).abs().max()
    demand(
        error <= allowed,
        f"promises to be exact, but the update is {error:.2g} off the mean of the gradients",
    )


def check_unbiased(compressor: Compressor, repeats: int = 600) -> None:
    """Check that the mean of N updates is off by the noise of one update over sqrt(N).

    This must hold over all directions, and along the gradient.
    """
    grads = gradients(range(2), 0)
    mean = flat(grads).mean(0)
    updates = [flat(aggregate(compressor, grads, number=n).update) for n in range(repeats)]
    errors = torch.cat(updates) - mean
    rounding = 1e-6 * mean.norm()
    error = errors.mean(0).norm()
    noise = (errors.square().sum(1).mean() / repeats).sqrt() + rounding
    demand(
        error < 2**0.5 * noise,
        f"promises to be unbiased, but the mean of {repeats} updates is {error / noise:.1f} times "
        "as far from the mean of the gradients as chance explains",
    )
    along = errors @ mean / mean.norm()
    demand(
        along.mean().abs() < 5 * along.std() / repeats**0.5 + rounding,
        f"promises to be unbiased, but {repeats} updates are on average "
        f"{1 + along.mean() / mean.norm():.4f} times as long as the mean of the gradients",
    )


def vectors(n: int) -> dict[str, Tensor]:
    """Return vectors that are hard to code, each in a different way."""
    generator = torch.Generator().manual_seed(0)
    spike, few = torch.zeros(n), torch.zeros(n)
    spike[n // 3], few[:: n // 7] = -3, torch.arange(len(few[:: n // 7])) + 1.0
    quarter = torch.full((n,), 0.25 / 7)  # between two of 7 levels
    quarter[0] = 1
    return {
        "random": torch.randn(n, generator=generator),
        "heavy tails": torch.randn(n, generator=generator) ** 5,
        "flat": torch.full((n,), 0.7),
        "alternating": torch.full((n,), 0.7) * (1 - 2 * (torch.arange(n) % 2)),
        "spike": spike,
        "few": few,
        "falling": 0.9 ** torch.arange(n).clamp_max(90),
        "between levels": quarter,
    }


VECTORS = vectors(156)


def check_contractive(compressor: Compressor, kind: str, slack: float = 1e-6) -> float:
    """Check that a worker's mean squared error is below |v|^2; return their ratio, 1 - delta.

    If it is not, the ratio of the largest magnitudes counts, squared. The slack lets a sketch miss
    a gradient altogether, but not add to it.
    """
    rows = torch.stack([VECTORS[kind], VECTORS["random"]])
    grads = {"w": rows.view(2, 12, 13)}
    v = flat(grads)
    sent = [flat(aggregate(compressor, grads, number=number).sent()) for number in range(40)]
    errors = (v - torch.stack(sent)).square()
    share = float((errors.sum(2).mean(0) / v.square().sum(1)).max())
    of_largest = float((errors.amax(2).amax(0) / v.square().amax(1)).max())
    share = min(share, of_largest) if share >= 1 else share
    demand(
        share < 1 + slack,
        f"promises to be contractive, but on the vector '{kind}' the error is {share:.3f} |v|^2",
    )
    return share


def check_mean_linear(compressor: Compressor) -> None:
    """Check that rows and their mean give the same updates."""
    of_rows, of_means = State(), State()
    allowed = max(1e-5, rounding_of_values(compressor))
    for number in range(3):
        grads = gradients(range(4), number)
        means = {k: g.mean(0, keepdim=True) for k, g in grads.items()}
        rows = aggregate(compressor, grads, number=number, state=of_rows)
        replicated = aggregate(compressor, means, number=number, state=of_means, comm=Comm(1))
        of_rows, of_means = rows.state, replicated.state
        error = float((flat(rows.update) - flat(replicated.update)).norm() / flat(means).norm())
        demand(
            error <= allowed,
            "promises to be mean-linear, but the update of the workers' gradients differs by "
            f"{error:.2g} from the update of their mean",
        )


def check_divisible(compressor: Compressor) -> None:
    """Check that shapes do not matter: flattened tensors have the same update, to the bit."""
    grads = gradients(range(4), 0)
    shaped = aggregate(compressor, grads)
    flattened = aggregate(compressor, dict(zip(grads, flatten_each(grads), strict=True)))
    for name, update in shaped.update.items():
        demand(
            torch.equal(flattened.update[name].flatten(), update.flatten()),
            f"promises to be divisible, but the update of {name} depends on its shape",
        )


def check_direction(compressor: Compressor) -> None:
    """Check that no tensor's update is the same for four times the gradients, unless promised.

    The gradients are too small for norm clipping, and come after a dense warm-up.
    """
    number = dense_steps_of(compressor)
    small = {k: g / 1024 for k, g in gradients(range(4), number).items()}
    large = {k: 4 * g for k, g in small.items()}
    one, other = (aggregate(compressor, grads, number=number).update for grads in (small, large))
    same = [k for k, u in one.items() if u.any() and torch.allclose(u, other[k], rtol=1e-3, atol=0)]
    promised = is_direction(compressor)
    demand(
        promised or not same,
        f"the update of {', '.join(same)} is the same for four times the gradients; "
        "promise direction=True",
    )
    coded = compressed_share(compressor, list(SHAPES.values()), 0)
    demand(
        same or not (promised and coded),
        "promises a direction, but the updates of all tensors grow with the gradients",
    )


PARTS = [("conv", "scalar", "twin", "one"), ("conv bias", "matrix", "row")]


def check_scope(compressor: Compressor) -> None:
    """Check that updates depend on other tensors if the scope is global, and only then.

    Some tensors are aggregated without the others, at their places in the model.
    """
    of_all = _updates(compressor, list(SHAPES))
    errors = [
        ((part[name] - whole[name]).norm() / whole[name].norm().clamp_min(1e-30)).item()
        for names in PARTS
        for part, whole in zip(_updates(compressor, names), of_all, strict=True)
        for name in names
    ]
    # A sum is rounded in another order if other tensors are beside it.
    allowed = max(1e-4, 2.5 * rounding_of_values(compressor))
    scope = "global" if max(errors) > allowed else "tensor"
    demand(
        scope == compressor.properties.scope,
        f"promises scope={compressor.properties.scope}, but a tensor's update "
        + (
            "depends on the tensors beside it"
            if scope == "global"
            else "is the same whatever lies beside it"
        ),
    )


def _updates(compressor: Compressor, names: Sequence[str]) -> list[Grads]:
    """Return the updates of three steps; in the second, one tensor is much larger than others."""
    state, updates = State(), []
    for number in range(3):
        grads = gradients(range(4), number)
        grads["conv"] *= 30 if number == 1 else 1
        step = Step(number, 1, range(4), offsets_of(sizes_of(grads)))
        out = compressor.aggregate({k: grads[k] for k in names}, state, Comm(4), step)
        state = out.state
        updates.append(out.update)
    return updates


def check_error_feedback(compressor: Compressor) -> None:
    """Check that sent + residual' = grad + beta residual, with error feedback around any method."""
    alpha, beta = 0.7, 0.9
    around, state = ErrorFeedback(compressor, alpha, beta), State()
    for number in range(3):
        grads = gradients(range(4), number)
        out = aggregate(around, grads, number=number, state=state)
        residual = state.per_worker or {k: torch.zeros_like(g) for k, g in grads.items()}
        sent = out.sent()
        for name, g in grads.items():
            left, right = sent[name] + out.state.per_worker[name], g + beta * residual[name]
            close = torch.allclose(
                left,
                right,
                rtol=1e-4,
                atol=1e-5 * float(right.abs().max() + sent[name].abs().max()),
            )
            demand(
                close,
                f"with error feedback around it, sent() and the residual of {name} do not add up "
                "to what was to be sent",
            )
        state = out.state
