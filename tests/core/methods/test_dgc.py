"""Deep gradient compression against its algorithm in float64."""

from __future__ import annotations

import numpy as np
import torch
from method_cases import aggregate
from nightly import each

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State
from gcbench.core.methods.dgc import DGC
from gcbench.core.wrappers.build import build

SHAPES = {"w": (20, 15), "b": (9,)}
WORKERS, STEPS, MOMENTUM = 3, 12, 0.7


def gradients(step: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return {k: torch.randn(WORKERS, *shape, generator=draw) for k, shape in SHAPES.items()}


@each("warmup_steps", [0, 8])
def test_updates_and_memories_are_those_of_the_algorithm(warmup_steps: int) -> None:
    method, state = build(DGC(MOMENTUM, 0.02, warmup_steps)), State()
    u, v = ({k: np.zeros((WORKERS, *shape)) for k, shape in SHAPES.items()} for _ in "uv")
    for step in range(STEPS):
        share = max(0.02, 0.25 ** (step // 2 + 1)) if step < warmup_steps else 0.02
        grads, comm = gradients(step), Comm(WORKERS)
        out = aggregate(method, grads, number=step, state=state, comm=comm)
        state = out.state
        values = 0
        for name, g in grads.items():
            u[name] = MOMENTUM * u[name] + g.double().numpy()
            v[name] += u[name]
            k = max(1, int(share * g[0].numel()))
            values += k
            sent = np.zeros_like(v[name])
            for worker in range(WORKERS):
                of_worker = v[name][worker].reshape(-1)
                chosen = np.abs(of_worker).argsort()[-k:]
                sent[worker].reshape(-1)[chosen] = of_worker[chosen]
            u[name][sent != 0] = v[name][sent != 0] = 0
            np.testing.assert_allclose(out.update[name][0], sent.mean(0), atol=1e-5)
            np.testing.assert_allclose(state.per_worker[name], v[name], atol=1e-5)
            assert state.inner is not None
            np.testing.assert_allclose(state.inner.per_worker[name], u[name], atol=1e-5)
        assert comm.meter.sent_bits == [64 * values] * WORKERS


def test_a_constant_gradient_arrives_with_its_momentum() -> None:
    """The mean update is g / (1 - m), less what masking takes of velocities."""
    grads = {"w": torch.ones(1, 64) + torch.arange(64) / 64}
    for momentum, least, most in ((0.0, 0.9, 1.01), (0.5, 1.2, 2.0)):
        method, state, total = build(DGC(momentum, 0.25)), State(), torch.zeros(1, 64)
        for number in range(100):
            out = aggregate(method, grads, number=number, state=state)
            state, total = out.state, total + out.update["w"]
        ratio = total / 100 / grads["w"]
        assert least < ratio.min() and ratio.max() < most
