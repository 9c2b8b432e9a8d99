"""ACP-SGD against a direct implementation of its algorithm, with each worker's residual."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from method_cases import aggregate, build_method, gradients
from nightly import each
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State
from gcbench.core.methods.acpsgd import ACPSGD

NAMES = ("matrix", "twin", "conv")


def matrices(number: int) -> dict[str, Tensor]:
    return {k: g for k, g in gradients(range(4), number).items() if k in NAMES}


def orthonormal(factor: Tensor) -> Tensor:
    return torch.linalg.qr(factor)[0]


@each("number_of", [lambda i: i, lambda i: 10 * i])
def test_updates_and_residuals_are_those_of_the_algorithm(number_of: Callable[[int], int]) -> None:
    """Each step projects on the factor that was sent last, whatever the step's number."""
    compressor, state = build_method("acpsgd", rank=2), State()
    first = aggregate(compressor, matrices(0), number=0)
    # The first update is M Q Q^T, whose rows span the random Q.
    factors = {
        k: torch.linalg.svd(u[0].flatten(1).double())[2][:2].mT for k, u in first.update.items()
    }
    residual = {k: torch.zeros_like(g, dtype=torch.float64) for k, g in matrices(0).items()}
    for i in range(6):
        grads = matrices(i)
        out = aggregate(compressor, grads, number=number_of(i), state=state)
        state = out.state
        for k, g in grads.items():
            m = (g.double() + residual[k]).flatten(2)
            if i % 2 == 0:
                q = orthonormal(factors[k])
                factors[k] = (m @ q).mean(0)
                projected = m @ q @ q.mT
            else:
                p = orthonormal(factors[k])
                factors[k] = (m.mT @ p).mean(0)
                projected = p @ (p.mT @ m)
            residual[k] = (m - projected).view_as(g)
            expected = projected.mean(0).view_as(out.update[k][0]).float()
            torch.testing.assert_close(out.update[k][0], expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                state.per_worker[k], residual[k].float(), rtol=1e-4, atol=1e-5
            )


def test_a_step_is_one_all_reduce_of_one_factor() -> None:
    calls: list[int] = []
    comm = Comm(4, listener=lambda collective, tensors, lengths: calls.append(len(tensors)))
    state, sent, grads = State(), [0], {"w": torch.randn(4, 9, 2, 5), "x": torch.randn(4, 4, 30)}
    for number in range(4):
        state = aggregate(ACPSGD(2), grads, number=number, state=state, comm=comm).state
        sent.append(comm.meter.sent_bits[0])
    assert len(calls) == 4
    assert [b - a for a, b in itertools.pairwise(sent)] == [
        32 * 2 * (9 + 4),
        32 * 2 * (10 + 30),
    ] * 2


@each("shape", [(2, 2), (3, 3), (1, 1)])
def test_a_square_matrix_of_full_rank_is_exact(shape: tuple[int, int]) -> None:
    """If n = m = r, both factors have the same shape, and each spans the whole space."""
    state = State()
    for number in range(5):
        g = torch.randn(3, *shape, generator=torch.Generator().manual_seed(number))
        out = aggregate(ACPSGD(max(shape)), {"w": g}, number=number, state=state)
        state = out.state
        torch.testing.assert_close(out.update["w"][0], g.mean(0), rtol=1e-4, atol=1e-5)
