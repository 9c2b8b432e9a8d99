"""The unbiased sketch as printed, and the alternating projection behind the published rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from method_cases import aggregate, flat
from nightly import each
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State
from gcbench.core.methods.acpsgd import UnbiasedLowRank


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@each("rank", [1, 3])
def test_the_sketch_is_unbiased_and_its_variance_is_known(rank: int) -> None:
    """E|M U U^T - M|^2 is (m + 1) / r |M|^2, and 1 / N of that for the mean of N draws."""
    repeats, grads = 2000, {"w": randn(1, 8, 15)}
    m, energy = flat(grads), flat(grads).square().sum()
    errors = (
        torch.cat(
            [flat(aggregate(UnbiasedLowRank(rank), grads, number=k).update) for k in range(repeats)]
        )
        - m
    )
    assert errors.square().sum(1).mean() / energy == pytest.approx(16 / rank, rel=0.1)
    assert errors.mean(0).square().sum() / energy < 1.5 * 16 / rank / repeats
    assert (errors @ m.T).mean().abs() < 5 * (errors @ m.T).std() / repeats**0.5


def test_the_sketch_multiplies_by_the_identity_on_average() -> None:
    """The update of the identity is U U^T, which is symmetric and the same for all workers."""
    identity = {"w": torch.eye(6).expand(3, 6, 6)}
    updates = [aggregate(UnbiasedLowRank(4), identity, number=k).update["w"][0] for k in range(800)]
    for u in updates[:10]:
        assert torch.allclose(u, u.T, atol=1e-5) and torch.linalg.matrix_rank(u) == 4
    # Five standard errors of an entry of the diagonal, whose variance is 2 / 4.
    torch.testing.assert_close(torch.stack(updates).mean(0), torch.eye(6), rtol=0, atol=0.125)


@each("variant", ["text", "alternating"])
def test_one_worker_with_the_mean_gradient_does_what_all_do(variant: str) -> None:
    method, of_all, of_one = UnbiasedLowRank(2, variant), State(), State()  # type: ignore[arg-type]
    for number in range(4):
        g = randn(4, 9, 2, 5, seed=number)
        everyone = aggregate(method, {"w": g}, number=number, state=of_all)
        alone = aggregate(method, {"w": g.mean(0, keepdim=True)}, number=number, state=of_one)
        of_all, of_one = everyone.state, alone.state
        torch.testing.assert_close(everyone.update["w"], alone.update["w"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            everyone.sent()["w"].mean(0), everyone.update["w"][0], rtol=1e-4, atol=1e-5
        )


def test_alternating_steps_send_either_factor() -> None:
    """Steps send r n and r m floats in turn; the state is the factor sent last."""
    comm, state, grads = Comm(1), State(), {"w": randn(1, 9, 2, 5), "x": randn(1, 4, 30, seed=1)}
    seen = [0]
    for number in range(4):
        out = aggregate(
            UnbiasedLowRank(2, "alternating"), grads, number=number, state=state, comm=comm
        )
        state = out.state
        seen.append(comm.meter.sent_bits[0])
        assert {k: p.shape[1:] for k, p in state.shared.items()} == (
            {"w": (1, 2, 10), "x": (1, 2, 30)} if number % 2 else {"w": (2, 9), "x": (2, 4)}
        )
    sent = [b - a for a, b in itertools.pairwise(seen)]
    assert sent == [32 * 2 * (9 + 4), 32 * 2 * (10 + 30)] * 2


def test_alternating_steps_converge_to_the_best_approximation() -> None:
    """On a fixed matrix they are a power iteration; an update is never longer than the gradient."""
    u, _, v = torch.linalg.svd(randn(40, 30), full_matrices=False)
    g = ((u * 0.8 ** torch.arange(30.0)) @ v).unsqueeze(0)
    best = torch.linalg.svdvals(g[0].double())[2:].square().sum().sqrt()
    state, errors = State(), []
    for number in range(80):
        out = aggregate(UnbiasedLowRank(2, "alternating"), {"w": g}, number=number, state=state)
        state = out.state
        errors.append(float((out.update["w"] - g).norm() / best))
        assert out.update["w"].norm() <= 1.0001 * g.norm()
    assert errors[0] > 1.1 and errors[-1] == pytest.approx(1, abs=1e-3)
    assert all(later <= earlier + 1e-5 for earlier, later in itertools.pairwise(errors))


def test_alternating_survives_a_gradient_of_zeros() -> None:
    g, state = randn(1, 6, 3) @ randn(1, 3, 8, seed=1), State()
    for number in range(30):
        grads = {"w": torch.zeros_like(g) if 3 <= number < 6 else g}
        out = aggregate(UnbiasedLowRank(3, "alternating"), grads, number=number, state=state)
        state = out.state
    torch.testing.assert_close(out.update["w"], g, rtol=1e-3, atol=1e-3)


def test_promises_depend_on_the_variant() -> None:
    text, alternating = UnbiasedLowRank(2).properties, UnbiasedLowRank(2, "alternating").properties
    assert text.unbiased and not text.contractive
    assert alternating.contractive and not alternating.unbiased
