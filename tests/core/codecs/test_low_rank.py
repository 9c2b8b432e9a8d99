"""Columns that become orthonormal or zero, and draws among singular values."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import each
from torch import Tensor

from gcbench.core.codecs.low_rank import conditional_bernoulli, orthogonalize, svd


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_orthonormal_or_zero(q: Tensor, tolerance: float = 5e-6) -> None:
    """Assert, by the Gram matrix, that all columns that are not zero are orthonormal."""
    gram = (
        (q.double().mT @ q.double()).flatten(0, -3)
        if q.dim() > 2
        else (q.double().mT @ q.double()).unsqueeze(0)
    )
    kept = (q != 0).any(-2).view(gram.shape[0], -1)
    torch.testing.assert_close(gram, torch.diag_embed(kept.double()), rtol=0, atol=tolerance)


def residual(p: Tensor, q: Tensor) -> float:
    """Return the norm of the part of p that q does not span, relative to that of p."""
    p, q = p.double() / p.double().abs().amax(), q.double()
    return float((p - q @ (q.mT @ p)).norm() / p.norm())


@settings(deadline=None)
@given(
    n=st.integers(1, 60),
    r=st.integers(1, 12),
    seed=st.integers(0, 1000),
    exponent=st.integers(-36, 36),
)
def test_random_columns_become_orthonormal_at_any_magnitude(
    n: int, r: int, seed: int, exponent: int
) -> None:
    p = randn(n, min(n, r), seed=seed) * 10.0**exponent
    q = orthogonalize(p)
    assert_orthonormal_or_zero(q)
    assert residual(p, q) < 1e-5


@each("magnitude", [1e-30, 1.0, 1e30])
@each("distance", [1e-1, 1e-3, 1e-5, 1e-7, 1e-9])
@each("r", [2, 7, 12])
def test_nearly_dependent_columns_become_orthonormal(
    distance: float, r: int, magnitude: float
) -> None:
    p = (randn(200, 1) + distance * randn(200, r, seed=1)) * magnitude
    q = orthogonalize(p)
    assert_orthonormal_or_zero(q)
    assert residual(p, q) < 1e-5


def test_directions_that_float32_can_tell_apart_are_kept() -> None:
    p = randn(200, 1) + 1e-5 * randn(200, 4, seed=1)
    assert (orthogonalize(p) != 0).any(0).all()


@each("n", [2, 3, 10, 50, 100, 1000])
@each("shape", ["flat", "two classes", "equal", "random"])
def test_dependent_columns_are_not_counted_twice(shape: str, n: int) -> None:
    """Gradients have such columns if their rows are equal, or opposite as with two classes."""
    column = {
        "flat": torch.full((n, 1), 0.3),
        "two classes": torch.tensor([0.7, -0.7]).repeat(n)[:n].unsqueeze(1),
        "equal": torch.ones(n, 1),
        "random": randn(n, 1),
    }[shape]
    p = column * torch.tensor([[1.3, -0.7, 2.1]])
    q = orthogonalize(p)
    assert_orthonormal_or_zero(q)
    assert residual(p, q) < 1e-5


def test_zero_columns_stay_zero() -> None:
    p = randn(20, 3)
    p[:, 1] = 0
    q = orthogonalize(p)
    assert not q[:, 1].any()
    assert_orthonormal_or_zero(q)
    assert q[:, 2].any()
    assert not orthogonalize(torch.zeros(5, 2)).any()


def test_each_matrix_of_a_batch_has_its_own_norm() -> None:
    scales = torch.tensor([1e-30, 1e-3, 1.0, 1e4, 1e30]).view(5, 1, 1)
    p = randn(5, 30, 3) * scales
    q = orthogonalize(p)
    assert_orthonormal_or_zero(q)
    for i in range(5):
        torch.testing.assert_close(q[i], orthogonalize(p[i]))
    two_axes = orthogonalize(p.view(1, 5, 30, 3))
    torch.testing.assert_close(two_axes[0], q)


def test_it_is_gram_schmidt() -> None:
    """The result is the QR decomposition with a positive diagonal."""
    p = randn(40, 5)
    q, r = torch.linalg.qr(p.double())
    torch.testing.assert_close(
        orthogonalize(p).double(), q * r.diagonal().sign(), rtol=0, atol=1e-5
    )


def test_the_input_is_left_alone() -> None:
    p = randn(10, 2)
    before = p.clone()
    orthogonalize(p)
    assert torch.equal(p, before)


# Draws among singular values


@each("count", [0, 1, 2, 4, 5])
def test_keeping_exactly_so_many_is_throwing_again_until_it_is(count: int) -> None:
    """The frequencies of all sets of that size agree with their probabilities."""
    p, n = torch.tensor([1.0, 0.7, 0.4, 0.4, 0.05], dtype=torch.float64), 20_000
    if count == 0:
        p[0] = 0.9
    uniform = torch.rand(5, n, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    kept = conditional_bernoulli(p.unsqueeze(1).expand(5, n), torch.tensor(count), count, uniform)
    sets = torch.cartesian_prod(*[torch.tensor([False, True])] * 5)
    weights = torch.where(sets, p, 1 - p).prod(1) * (sets.sum(1) == count)
    powers = 2 ** torch.arange(4, -1, -1)
    frequencies = (powers @ kept.long()).bincount(minlength=32)[sets.long() @ powers] / n
    expected = weights / weights.sum()
    assert (frequencies - expected).abs().max() < 5 * (0.25 / n) ** 0.5
    assert not frequencies[expected == 0].any()


def test_where_no_throw_has_so_many_the_first_are_kept() -> None:
    p = torch.tensor([[0.9, 1.0], [0.0, 1.0], [0.0, 0.5], [0.0, 0.5]], dtype=torch.float64)
    kept = conditional_bernoulli(
        p, torch.tensor([2, 2]), 2, torch.full((4, 2), 0.999, dtype=torch.float64)
    )
    assert kept.T.tolist() == [[True, True, False, False]] * 2


def test_singular_values_of_what_is_not_finite_are_nan() -> None:
    m = randn(3, 5, 4)
    m[1, 0, 0], m[2, 4, 3] = torch.inf, torch.nan
    _, s, _ = svd(m)
    torch.testing.assert_close(s[0], torch.linalg.svdvals(m[0]))
    assert s[1:].isnan().all()
