"""Scales, and stochastic rounding to levels."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import each
from torch import Tensor

from gcbench.core.codecs.scales import NORMS, grid_codes, grid_values, l2_norm, max_norm

FLOATS = st.floats(
    width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100
)
SPECIAL = {
    "random": torch.randn(64, generator=torch.Generator().manual_seed(0)),
    "flat": torch.full((64,), -0.3),
    "spike": torch.eye(64)[3] * 7,
    "zeros": torch.zeros(64),
    "denormals": torch.arange(64) * 1e-45,
    "tiny": torch.full((64,), 1e-30),
    "huge": torch.full((64,), 1e37),
}


# Random words that are the lowest, the middle and the highest draw of [0, 1).
FIRST, MIDDLE, LAST = -(2**31), 0, 2**31 - 1


def words_like(v: Tensor, word: int) -> Tensor:
    return torch.full(v.shape, word, dtype=torch.int32)


def evenly(v: Tensor, repeats: int) -> Iterator[Tensor]:
    """Yield words whose draws fill [0, 1) evenly."""
    for k in range(repeats):
        yield words_like(v, round((k + 0.5) / repeats * 2**32 - 2**31))


@settings(deadline=None)
@given(
    values=st.lists(st.tuples(FLOATS, st.integers(FIRST, LAST)), min_size=1, max_size=40),
    highest=st.integers(1, 255),
    norm=st.sampled_from(["linf", "l2"]),
)
def test_codes_are_next_to_the_value(
    values: list[tuple[float, int]], highest: int, norm: str
) -> None:
    floats, words = zip(*values, strict=True)
    v = torch.tensor([floats])
    scale = NORMS[norm](v).unsqueeze(-1)
    codes = grid_codes(v, scale, highest, torch.tensor([words], dtype=torch.int32))
    assert codes.dtype == torch.int32
    assert codes.min() >= 0 and codes.max() <= highest
    if scale > 0:
        place = (v.double() / scale.double() + 1) * highest / 2
        assert ((codes > place - 1.001) & (codes < place + 1.001)).all()


@each("name", SPECIAL)
@each("word", [FIRST, LAST])
@each("levels", [1, 7, 100, 127])
@each("norm", ["linf", "l2"])
def test_the_most_extreme_draws_stay_in_range(name: str, word: int, levels: int, norm: str) -> None:
    v = SPECIAL[name].unsqueeze(0)
    scale = NORMS[norm](v).unsqueeze(-1)
    codes = grid_codes(v, scale, 2 * levels, words_like(v, word))
    decoded = grid_values(codes - levels, scale, 2 * levels)
    assert codes.min() >= 0 and codes.max() <= 2 * levels
    assert decoded.isfinite().all()
    assert (decoded * v >= 0).all(), "no sign turns"


@each("levels", [1, 4, 7, 127])
@each("word", [FIRST, MIDDLE, LAST])
def test_what_lies_on_a_level_stays(levels: int, word: int) -> None:
    v = SPECIAL["random"].unsqueeze(0).clone()
    v[0, :2] = torch.tensor([0.0, -9.0])
    scale = max_norm(v).unsqueeze(-1)
    decoded = grid_values(
        grid_codes(v, scale, 2 * levels, words_like(v, word)) - levels, scale, 2 * levels
    )
    assert decoded[0, :2].tolist() == [0, -9]


@each("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_gets_a_code_of_its_range(value: float) -> None:
    v = torch.tensor([[1.0, value, 0.0]])
    for word in (FIRST, LAST):
        codes = grid_codes(v, max_norm(v).unsqueeze(-1), 14, words_like(v, word))
        assert codes.min() >= 0 and codes.max() <= 14


@each("highest", [1, 2, 3, 14, 100, 255])
@each("norm", ["linf", "l2"])
def test_quantizing_is_unbiased(highest: int, norm: str) -> None:
    v = SPECIAL["random"].unsqueeze(0)
    scale = NORMS[norm](v).unsqueeze(-1)
    total = torch.zeros_like(v, dtype=torch.float64)
    for words in evenly(v, 2000):
        total += grid_values(grid_codes(v, scale, highest, words) - highest / 2, scale, highest)
    torch.testing.assert_close(
        total / 2000, v.double(), rtol=0, atol=2.2 * scale.max().item() / highest / 2000
    )


def exact_norm(x: Tensor) -> float:
    return math.sqrt(math.fsum(value**2 for value in x.double().tolist()))


@each("name", SPECIAL)
def test_l2_norm_neither_over_nor_underflows(name: str) -> None:
    x = SPECIAL[name]
    expected = exact_norm(x)
    assert l2_norm(x).item() == pytest.approx(expected, rel=1e-5, abs=1.5e-45)


@settings(deadline=None)
@given(values=st.lists(FLOATS, min_size=1, max_size=50))
def test_l2_norm_is_that_of_exact_arithmetic_and_never_below_the_maximum(
    values: list[float],
) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    norm = l2_norm(x)
    assert norm >= x.abs().max()
    assert norm.item() == pytest.approx(exact_norm(x), rel=1e-5, abs=3e-45)
