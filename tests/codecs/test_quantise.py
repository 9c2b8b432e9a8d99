"""Scales, and stochastic rounding to levels."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gcbench.codecs.quantise import NORMS, dequantise, l2_norm, max_norm, quantise, stochastic_round

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)
DRAWS = st.floats(0, 1, exclude_max=True, width=32)
SPECIAL = {
    "random": torch.randn(64, generator=torch.Generator().manual_seed(0)),
    "flat": torch.full((64,), -0.3),
    "spike": torch.eye(64)[3] * 7,
    "zeros": torch.zeros(64),
    "denormals": torch.arange(64) * 1e-45,
    "tiny": torch.full((64,), 1e-30),
    "huge": torch.full((64,), 1e37),
}


@settings(deadline=None)
@given(
    values=st.lists(st.tuples(FLOATS, DRAWS), min_size=1, max_size=40),
    levels=st.integers(1, 127),
    norm=st.sampled_from(["linf", "l2"]),
)
def test_codes_never_leave_their_range(values: list[tuple[float, float]], levels: int, norm: str) -> None:
    v, noise = (torch.tensor([column]) for column in zip(*values, strict=True))
    scale = NORMS[norm](v).unsqueeze(-1)
    codes = quantise(v, scale.expand_as(v), levels, noise).int()
    assert 0 <= codes.min() and codes.max() <= 2 * levels
    below, above = (v.double() / scale.double().clamp_min(1e-300) * levels for _ in range(2))
    near = (codes - levels).double()
    assert ((near > below - 1.001) & (near < above + 1.001)).all()


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("draw", [0.0, 1 - 2.0**-24])
@pytest.mark.parametrize("levels", [1, 7, 100, 127])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_most_extreme_draws_stay_in_range(name: str, draw: float, levels: int, norm: str) -> None:
    v = SPECIAL[name].unsqueeze(0)
    scale = NORMS[norm](v).unsqueeze(-1).expand_as(v)
    codes = quantise(v, scale, levels, torch.full_like(v, draw)).int()
    decoded = dequantise(codes.to(torch.uint8), scale, levels)
    assert 0 <= codes.min() and codes.max() <= 2 * levels
    assert decoded.isfinite().all()
    assert (decoded * v >= 0).all(), "no sign turns"


def test_the_largest_value_of_a_bucket_is_exact() -> None:
    v = SPECIAL["random"].unsqueeze(0)
    scale = max_norm(v).unsqueeze(-1).expand_as(v)
    largest = v.abs().argmax()
    for draw in (0.0, 0.5, 0.999):
        decoded = dequantise(quantise(v, scale, 4, torch.full_like(v, draw)), scale, 4)
        assert decoded[0, largest] == v[0, largest]


def test_rounding_is_up_with_the_probability_of_the_fraction() -> None:
    """Over evenly spread draws the share is exact."""
    noise = torch.arange(1000) / 1000
    for x in (0.0, 0.25, 0.5, 3.125, 6.875, 7.0):
        rounded = stochastic_round(torch.full((1000,), x), noise)
        assert set(rounded.tolist()) <= {math.floor(x), math.ceil(x)}
        assert rounded.mean().item() == pytest.approx(x, abs=1e-3)


@pytest.mark.parametrize("levels", [1, 2, 7, 100])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_quantising_is_unbiased(levels: int, norm: str) -> None:
    v = SPECIAL["random"].unsqueeze(0)
    scale = NORMS[norm](v).unsqueeze(-1).expand_as(v)
    draws = (torch.arange(2000) + 0.5) / 2000
    total = torch.zeros_like(v, dtype=torch.float64)
    for draw in draws:
        total += dequantise(quantise(v, scale, levels, draw.expand_as(v)), scale, levels)
    torch.testing.assert_close(total / 2000, v.double(), rtol=0, atol=1.1 * scale.max().item() / levels / 2000)


def exact_norm(x: Tensor) -> float:
    return math.sqrt(math.fsum(value**2 for value in x.double().tolist()))


@pytest.mark.parametrize("name", SPECIAL)
def test_l2_norm_neither_over_nor_underflows(name: str) -> None:
    x = SPECIAL[name]
    expected = exact_norm(x)
    assert l2_norm(x).item() == pytest.approx(expected, rel=1e-5, abs=1.5e-45)


@settings(deadline=None)
@given(values=st.lists(FLOATS, min_size=1, max_size=50))
def test_l2_norm_is_that_of_exact_arithmetic_and_never_below_the_maximum(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    norm = l2_norm(x)
    assert norm >= x.abs().max()
    assert norm.item() == pytest.approx(exact_norm(x), rel=1e-5, abs=3e-45)
