"""1-bit Adam's coded momentum, and the optimizer that recovers it from the update."""

from __future__ import annotations

import torch
from method_cases import aggregate, build_method, flat, gradients
from nightly import each
from sentence import config_of
from torch import Tensor, nn

from gcbench.core.compressor import State
from gcbench.core.methods.dense import Dense
from gcbench.core.wrappers.build import build
from gcbench.runner.launch.instantiate import make
from gcbench.runner.train.optimizers import FrozenAdam

BETA = 0.9


def signs(x: Tensor, size: int, scale: str) -> Tensor:
    """Return the signs of `x` `[w, n]` times the magnitude of each bucket."""
    power = 1 if scale == "mean" else 2
    parts = [
        torch.where(bucket >= 0, 1.0, -1.0)
        * bucket.abs().pow(power).mean(1, keepdim=True).pow(1 / power)
        for bucket in x.split(size, dim=1)
    ]
    return torch.cat(parts, dim=1)


@each("scale", ["rms", "mean"])
def test_updates_make_the_momentum_of_the_algorithm(scale: str) -> None:
    """m_i = beta m + (1 - beta) g_i; m' = mean of C(m_i + e_i) = beta m + (1 - beta) update."""
    compressor, state = build_method("onebit_adam", bucket_size=16, scale=scale), State()
    shapes = {k: g[0].numel() for k, g in gradients(range(4), 0).items()}
    m = {k: torch.zeros(n) for k, n in shapes.items()}
    e = {k: torch.zeros(4, n) for k, n in shapes.items()}
    for number in range(6):
        grads = gradients(range(4), number)
        out = aggregate(compressor, grads, number=number, state=state)
        for name, g in grads.items():
            corrected = BETA * m[name] + (1 - BETA) * g.reshape(4, -1) + e[name]
            sent = signs(corrected, 16, scale)
            e[name] = corrected - sent
            of_update = BETA * m[name] + (1 - BETA) * out.update[name].flatten()
            m[name] = sent.mean(0)
            torch.testing.assert_close(of_update, m[name], rtol=1e-4, atol=1e-6)
            kept = out.state.shared[name].flatten()
            torch.testing.assert_close(kept, m[name], rtol=1e-4, atol=1e-6)
        state = out.state


def test_a_code_without_error_hands_on_the_mean_gradient() -> None:
    compressor, state = build(Dense(), momentum=BETA), State()
    for number in range(5):
        grads = gradients(range(4), number)
        out = aggregate(compressor, grads, number=number, state=state)
        state = out.state
        torch.testing.assert_close(flat(out.update)[0], flat(grads).mean(0), rtol=0, atol=1e-5)


@each("start", ["warmup", "zero"])
def test_the_optimizer_has_the_coded_momentum(start: str) -> None:
    """If that starts from zero, what is left of the warm-up's momentum is added to it."""
    warm_up, steps = 3, 8
    frozen = ("optimizer=frozen_adam", f"optimizer.freeze_steps={warm_up}")
    typed = ("compressor=onebit_adam", "bucket_size=16", f"momentum_start={start}")
    compressor = make(config_of(*typed, *frozen).compressor, "compressor")
    p, state = nn.Parameter(torch.zeros(10, 13)), State()
    optimizer = FrozenAdam([p], 0.01, [BETA, 0.999], 1e-8, 0.0, warm_up)
    at_the_end_of_the_warm_up = variance = torch.zeros(0)
    for number in range(steps):
        grads = {"w": gradients(range(4), number)["matrix"]}
        out = aggregate(compressor, grads, number=number, state=state)
        state, p.grad = out.state, out.update["w"][0]
        optimizer.step()
        if number < warm_up:  # this is dense training, to the bit
            assert torch.equal(p.grad, aggregate(build(Dense()), grads).update["w"][0])
            assert bool(state.shared) == (start == "warmup")
        if number == warm_up - 1:
            at_the_end_of_the_warm_up = optimizer.state[p]["exp_avg"].clone()
            variance = optimizer.state[p]["exp_avg_sq"].clone()
    left = BETA ** (steps - warm_up) * at_the_end_of_the_warm_up if start == "zero" else 0
    expected = state.shared["w"][0] + left
    torch.testing.assert_close(optimizer.state[p]["exp_avg"], expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(optimizer.state[p]["exp_avg_sq"], variance)


@each(
    ("overrides", "taken"),
    [
        (("optimizer=frozen_adam", "optimizer.betas=[0.8,0.99]"), (0.8, 100)),
        (("optimizer=frozen_adam", "optimizer.freeze_steps=7"), (0.9, 7)),
        (("optimizer=sgd", "optimizer.momentum=0.7"), (0.7, 0)),
    ],
)
def test_momentum_and_warm_up_are_those_of_the_optimizer(
    overrides: tuple[str, ...], taken: tuple[float, int]
) -> None:
    node = config_of("compressor=onebit_adam", *overrides).compressor
    assert (node["momentum"], node["dense_steps"]) == taken
