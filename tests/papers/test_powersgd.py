"""PowerSGD (Vogels et al., NeurIPS 2019): linearity, convergence, and the data of its tables."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest
import torch
from method_cases import aggregate
from paper_cases import sent_bits, shapes_of, sizes
from torch import Tensor

from gcbench.core.compressor import State
from gcbench.core.methods.powersgd import PowerSGD
from gcbench.core.wrappers.wrappers import ErrorFeedback


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# PowerSGD's data columns; those of the methods it is compared with are in test_bits.py

STEPS = {"resnet18 of cifar": 24, "lstm": 70}  # per epoch


@pytest.mark.claim("powersgd-01", where="tables 1, 3, 4, 6 and 7")
@pytest.mark.parametrize(
    ("network", "rank", "floats", "mib", "printed", "ratio"),
    [
        ("resnet18 of cifar", None, 11_173_962, 1023.0, 1023, 1),
        ("resnet18 of cifar", 1, 45_935, 4.21, 4, 243),
        ("resnet18 of cifar", 2, 82_260, 7.53, 8, 136),
        ("resnet18 of cifar", 4, 154_910, 14.18, 14, 72),
        ("resnet18 of cifar", 7, 263_885, 24.16, 24, None),
        ("lstm", None, 28_949_319, 7730.3, 7730, 1),
        ("lstm", 1, 93_488, 24.96, 25, 310),
        ("lstm", 2, 142_507, 38.05, 38, 203),
        ("lstm", 4, 240_545, 64.23, 64, 120),
    ],
)
def test_data_of_an_epoch_is_that_of_the_tables(
    network: str, rank: int | None, floats: int, mib: float, printed: int, ratio: int | None
) -> None:
    """The MiB of an epoch are what is metered in one worker's step, times the steps per epoch.

    The paper prints ratios without decimals.
    """
    shapes = shapes_of(network)
    bits = (
        sent_bits(shapes, "none")
        if rank is None
        else sent_bits(shapes, "powersgd", rank=rank, error_feedback=False)
    )
    assert bits == 32 * floats
    found = STEPS[network] * bits / 8 / 2**20
    assert round(found, len(str(mib).partition(".")[2])) == mib and round(found) == printed
    assert ratio is None or round(32 * sum(sizes(shapes)) / bits) == ratio


# Linearity


@pytest.mark.claim("powersgd-02", where="section 3")
@pytest.mark.parametrize("residual", ["own", "aggregated"])
def test_w_workers_with_batch_b_do_what_one_does_with_all_their_samples(
    residual: Literal["own", "aggregated"],
) -> None:
    """Both have the same float64 weights after each of a few steps of least squares.

    Error feedback is on. In later steps, they diverge, but only because of rounding.
    """
    workers, batch, steps = 4, 8, 6
    x, y = (
        randn(steps, workers * batch, 30, dtype=torch.float64),
        randn(steps, workers * batch, 20, seed=1, dtype=torch.float64),
    )
    start = State(inner=State(shared={"w": randn(1, 2, 30, seed=2, dtype=torch.float64)}))
    method = ErrorFeedback(PowerSGD(2, residual=residual))

    def trained(parts: int) -> tuple[list[Tensor], Tensor]:
        w, state, seen = torch.zeros(1, 20, 30, dtype=torch.float64), start, []
        for number in range(steps):
            xs, ys = x[number].unflatten(0, (parts, -1)), y[number].unflatten(0, (parts, -1))
            gradient = (xs @ w.mT - ys).mT @ xs / xs.shape[1]
            out = aggregate(method, {"w": gradient}, number=number, state=state)
            w, state = w - 0.1 * out.update["w"], out.state
            seen.append(w)
        return seen, state.per_worker["w"].mean(0)

    (of_all, memories), (of_one, memory_of_one) = trained(workers), trained(1)
    assert len({float(w.norm()) for w in of_one}) == steps
    for ours, theirs in zip(of_all, of_one, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    torch.testing.assert_close(memories, memory_of_one, rtol=0, atol=1e-10)
    assert memory_of_one.norm() > 0.1, "something was left out"


# One fixed matrix


def best_error(g: Tensor, rank: int) -> float:
    singular = torch.linalg.svdvals(g.double())
    return float(singular[rank:].square().sum().sqrt())


@pytest.mark.claim("powersgd-03", where="theorem I")
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_warm_start_converges_to_the_best_approximation(rank: int) -> None:
    """On one fixed matrix the error falls, step by step, to that of the truncated SVD."""
    u, _, v = torch.linalg.svd(randn(40, 30), full_matrices=False)
    singular = 0.8 ** torch.arange(30.0)
    g = (u * singular) @ v
    best, state, errors = best_error(g, rank), State(), []
    for number in range(60):
        out = aggregate(PowerSGD(rank), {"w": g.unsqueeze(0)}, number=number, state=state)
        state = out.state
        errors.append(float((out.update["w"][0].double() - g.double()).norm()) / best)
    truncated = (u[:, :rank] * singular[:rank]) @ v[:rank]
    assert (out.update["w"][0] - truncated).norm() < 1e-4 * truncated.norm()
    assert errors[0] > 1.02
    assert errors[-1] == pytest.approx(1, abs=1e-4)
    assert all(later <= earlier + 1e-5 for earlier, later in itertools.pairwise(errors))
