"""The Shannon bound, and a coder that comes close to it without falling below."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import each

from gcbench.core.codecs.packing import decode_ans, encode_ans, shannon_bits


def draw_codes(shares: list[float], rows: int, n: int, seed: int = 0) -> torch.Tensor:
    weights = torch.tensor(shares).expand(rows, -1)
    return torch.multinomial(
        weights, n, replacement=True, generator=torch.Generator().manual_seed(seed)
    ).to(torch.uint8)


def test_the_bound_is_the_sum_of_d_k_log_d_over_d_k() -> None:
    codes = draw_codes([0.1, 0.6, 0.0, 0.3], rows=3, n=500)
    by_hand = [sum(d * math.log2(500 / d) for d in Counter(row.tolist()).values()) for row in codes]
    assert shannon_bits(codes, 4).tolist() == pytest.approx(by_hand)


def test_the_bound_of_equal_shares_is_a_fixed_width() -> None:
    codes = torch.arange(64, dtype=torch.uint8).remainder(8).expand(2, -1)
    assert shannon_bits(codes, 8).tolist() == pytest.approx([192, 192])
    assert shannon_bits(torch.full((1, 9), 3, dtype=torch.uint8), 8).tolist() == [0]


SHARES = {
    "nearly all zero, as ECQ-SGD's": [0.01, 0.97, 0.02],
    "even": [1.0] * 15,
    "two-sided": [0.7 ** abs(k) for k in range(-7, 8)],
    "many": [0.96 ** abs(k) for k in range(-127, 128)],
}


@each("kind", SHARES)
def test_the_coder_meets_the_bound_within_a_per_cent(kind: str) -> None:
    codes = draw_codes(SHARES[kind], rows=2, n=100_000)
    words, weights = encode_ans(codes, len(SHARES[kind]))
    assert torch.equal(decode_ans(words, weights, 100_000), codes)
    for row, bound in zip(words, shannon_bits(codes, len(SHARES[kind])), strict=True):
        assert bound <= 32 * row[0] <= 1.01 * bound + 64


def test_rows_of_different_lengths_end_where_they_say() -> None:
    codes = torch.cat([draw_codes([0.01, 0.99], 1, 5000), draw_codes([0.5, 0.5], 1, 5000)])
    words, weights = encode_ans(codes, 2)
    assert words[0, 0] < words[1, 0] == words.shape[1] - 1
    assert not words[0, 1 + words[0, 0] :].any()
    assert torch.equal(decode_ans(words[:1], weights[:1], 5000), codes[:1])


@settings(deadline=None, max_examples=50)
@given(
    values=st.integers(2, 255),
    used=st.integers(1, 255),
    n=st.integers(1, 300),
    seed=st.integers(0, 99),
)
def test_any_codes_come_back(values: int, used: int, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, min(values, used), (2, n), generator=generator).to(torch.uint8)
    words, weights = encode_ans(codes, values)
    assert torch.equal(decode_ans(words, weights, n), codes)
