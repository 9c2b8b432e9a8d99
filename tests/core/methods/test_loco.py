"""LoCo against a direct implementation of its algorithm, and its rounding to the nearest level."""

from __future__ import annotations

import pytest
import torch
from method_cases import aggregate, build_method, flat, gradients
from nightly import each
from torch import Tensor

from gcbench.core.compressor import State
from gcbench.core.methods.loco import NearestLevel
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build

BETA, RESET = 0.3, 4


def nearest(x: Tensor, levels: int, size: int) -> Tensor:
    """Return `x` `[w, n]` rounded to the nearest levels, in buckets of `size` values."""
    parts = []
    for bucket in x.split(size, dim=1):
        step = (bucket.abs().amax(1, keepdim=True) / levels).clamp_min(1e-30)
        parts.append((bucket / step).round() * step)
    return torch.cat(parts, dim=1)


def test_updates_and_residuals_are_those_of_the_algorithm() -> None:
    """h = g + e; e is a moving average of what 4 bits lose, in 8 bits, reset every T steps."""
    settings = {"alpha": BETA, "reset_steps": RESET, "bucket_size": 16, "min_size": 0}
    compressor, state = build_method("loco", **settings), State()
    e = {k: torch.zeros(4, g[0].numel()) for k, g in gradients(range(4), 0).items()}
    for number in range(2 * RESET + 1):
        grads = gradients(range(4), number)
        out = aggregate(compressor, grads, number=number, state=state)
        for name, g in grads.items():
            h = g.reshape(4, -1) + e[name]
            sent = nearest(h, 7, 16)
            torch.testing.assert_close(
                out.update[name].flatten(), sent.mean(0), rtol=1e-4, atol=1e-6
            )
            e[name] = nearest((1 - BETA) * e[name] + BETA * (h - sent), 127, 512)
            if (number + 1) % RESET == 0:
                e[name].zero_()
        state = out.state
        codes = torch.cat([x.reshape(4, -1) for x in state.per_worker.values()], dim=1)
        assert codes.dtype == torch.int8 and codes.any() == ((number + 1) % RESET != 0)
        assert state.inner
        scales = [x.shape for x in state.inner.per_worker.values()]
        assert scales == [(4, -(-g[0].numel() // 512)) for g in grads.values()]


@each("levels", [1, 7, 127])
@each("size", [16, 4096])
def test_a_value_goes_to_the_nearest_level_and_never_past_zero(levels: int, size: int) -> None:
    v = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0)) ** 3
    sent = aggregate(build(NearestLevel(levels, bucket_size=size)), {"w": v}).sent()["w"]
    torch.testing.assert_close(sent, nearest(v, levels, size), rtol=1e-5, atol=1e-6)
    assert ((sent - v).abs() <= v.abs()).all()
    error = (sent - v).square().sum()
    stochastic = aggregate(build(QSGD(levels, bucket_size=size)), {"w": v}).sent()["w"]
    assert error < (stochastic - v).square().sum()


def test_a_moving_average_is_error_feedback_with_a_weight() -> None:
    """They agree up to the 8 bits of LoCo's residual; the weights are alpha = 0.2 and beta = 1."""
    method = NearestLevel(7, bucket_size=16)
    loco, exact = (
        build(method, error_feedback="loco", alpha=0.2),
        build(method, error_feedback=True, alpha=0.2),
    )
    states, total = [State(), State()], torch.zeros(2, 1, dtype=torch.float64)
    for number in range(30):
        outs = [
            aggregate(c, gradients(range(4), number), number=number, state=state)
            for c, state in zip((loco, exact), states, strict=True)
        ]
        states = [out.state for out in outs]
        total = total + torch.cat([flat(out.update) for out in outs])
    assert (total[0] - total[1]).norm() < 0.03 * total[1].norm()


def test_a_weight_of_the_old_residual_is_refused() -> None:
    with pytest.raises(ValueError, match=r"beta=0.9: LoCo always keeps the old residual whole"):
        build(NearestLevel(7, bucket_size=16), error_feedback="loco", beta=0.9)
