"""Spectral Atomo: the authors' matrices, the published draw with its bias, and the unbiased one."""

from __future__ import annotations

import pytest
import torch
from method_cases import aggregate, flat, gradients
from nightly import each
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.methods.atomo import Atomo, authors_shape


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_values(s: list[float], rows: int = 12, columns: int = 8) -> Tensor:
    """Return `[1, rows, columns]` with these singular values."""
    u, _, vt = torch.linalg.svd(randn(rows, columns), full_matrices=False)
    return ((u[:, : len(s)] * torch.tensor(s)) @ vt[: len(s)]).unsqueeze(0)


@each(
    ("shape", "matrix"),
    [
        ((64, 3, 3, 3), (96, 18)),
        ((128, 64, 3, 3), (4096, 18)),
        ((128, 64, 1, 1), (128, 64)),
        ((10, 512), (10, 512)),
        ((64,), (32, 2)),
        ((6, 4, 5), (12, 10)),
        ((5, 3, 3, 3), (15, 9)),
        ((7,), (7, 1)),
        ((), (1, 1)),
    ],
)
def test_tensors_become_the_matrices_of_the_authors(
    shape: tuple[int, ...], matrix: tuple[int, int]
) -> None:
    """The side n is halved, except for matrices; that odd ones are kept is gcbench's choice."""
    assert authors_shape(shape) == matrix


def means_of_values(variant: str, s: list[float], repeats: int = 4000) -> Tensor:
    """Return the mean decoded value of each singular value, relative to its true value."""
    m = with_values(s)
    u, values, vt = torch.linalg.svd(m[0], full_matrices=False)
    workers = m.expand(repeats, -1, -1)  # one draw per worker, all in one step
    mean = aggregate(Atomo(2, variant), {"w": workers}).update["w"][0]  # type: ignore[arg-type]
    return ((u.T @ mean @ vt.T).diagonal() / values)[: len(s)]


@each(
    ("s", "published"),
    [
        ([10, 1, 1], [1, 3, 3]),
        ([4, 2, 1, 1, 0.5, 0.5], [1.05, 1.14, 0.87, 0.87, 0.77, 0.77]),
        ([1.5, 0.5], [1, 2]),
    ],
)
def test_drawing_until_two_are_kept_is_biased_and_drawing_once_is_not(
    s: list[float], published: list[float]
) -> None:
    """With two values, the published estimator always keeps both and inflates the smaller one."""
    torch.testing.assert_close(
        means_of_values("published", s), torch.tensor(published).float(), rtol=0, atol=0.12
    )
    torch.testing.assert_close(
        means_of_values("unbiased", s), torch.ones(len(s)), rtol=0, atol=0.12
    )


def test_values_of_one_size_come_back_exactly() -> None:
    """All probabilities are one."""
    m = with_values([3.0] * 4, 4, 4)
    for variant in ("published", "unbiased"):
        update = aggregate(Atomo(4, variant), {"w": m}).update["w"]  # type: ignore[arg-type]
        torch.testing.assert_close(update, m, rtol=0, atol=1e-5)


@each("rank", [1, 2, 5])
def test_the_published_draw_keeps_exactly_so_many(rank: int) -> None:
    grads, comm = {"w": randn(6, 10, 7), "conv": randn(6, 4, 4, 3, 3, seed=1)}, Comm(6)
    sent = aggregate(Atomo(rank), grads, comm=comm).sent()
    assert torch.linalg.matrix_rank(sent["w"], rtol=1e-5).tolist() == [rank] * 6
    assert torch.linalg.matrix_rank(sent["conv"].view(6, 8, 18), rtol=1e-5).tolist() == [rank] * 6
    assert comm.meter.sent_bits == [32 * rank * (10 + 7 + 1 + 8 + 18 + 1)] * 6


def test_the_unbiased_draw_sends_what_it_keeps_and_its_length() -> None:
    """A worker's message is only as long as its own values need."""
    grads, comm = {"w": randn(8, 10, 7), "x": randn(8, 5, 6, seed=1)}, Comm(8)
    sent = aggregate(Atomo(2, "unbiased"), grads, comm=comm).sent()
    kept = {k: torch.linalg.matrix_rank(x, rtol=1e-5) for k, x in sent.items()}
    assert len(kept["w"].unique()) > 1
    expected = 32 * (kept["w"] * 18 + kept["x"] * 12) + 2 * 32
    assert comm.meter.sent_bits == expected.tolist()
    assert comm.meter.received_bits == (expected.sum() - expected).tolist()


@each("variant", ["published", "unbiased"])
def test_the_update_is_the_mean_of_what_was_sent(variant: str) -> None:
    out = aggregate(Atomo(2, variant), gradients(range(4), 0))  # type: ignore[arg-type]
    mean = flat(out.sent()).mean(0, keepdim=True)
    assert (flat(out.update) - mean).norm() < 1e-5 * mean.norm()


def test_workers_and_steps_draw_for_themselves() -> None:
    grads = {"w": randn(1, 10, 7).expand(40, 10, 7)}
    sent = aggregate(Atomo(1), grads).sent()["w"]
    again = aggregate(Atomo(1), grads, number=1).sent()["w"]
    assert len({tuple(x.flatten().tolist()) for x in sent}) > 3 and not torch.equal(sent, again)


def test_fewer_values_than_wanted_are_no_trap() -> None:
    """Repeating the draw until enough values are kept would never end."""
    out = aggregate(
        Atomo(3),
        {
            "w": torch.eye(6)[None] * torch.tensor([5.0, 0, 0, 0, 0, 0]),
            "zero": torch.zeros(1, 4, 4),
        },
    )
    assert out.update["w"][0, 0, 0] == pytest.approx(5) and out.update[
        "w"
    ].abs().sum() == pytest.approx(5)
    assert not out.update["zero"].any()


@each("variant", ["published", "unbiased"])
def test_a_gradient_that_is_not_finite_is_seen(variant: str) -> None:
    g = randn(2, 6, 5)
    g[1, 2, 2] = torch.nan
    atomo = Atomo(2, variant)  # type: ignore[arg-type]
    out = aggregate(atomo, {"w": g, "x": randn(2, 6, 5, seed=1)})
    assert not out.update["w"].isfinite().any() and out.update["x"].isfinite().all()


def test_promises_depend_on_the_variant() -> None:
    assert Atomo(2, "unbiased").properties.unbiased and not Atomo(2).properties.unbiased
