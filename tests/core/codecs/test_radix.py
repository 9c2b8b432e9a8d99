"""Digits are unpacked unchanged, and words are as dense as promised."""

from __future__ import annotations

import math

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import each
from torch import Tensor

from gcbench.core.codecs.packing import pack
from gcbench.core.codecs.radix import pack_digits, unpack_digits, word_of

# The number of digits in a word and the word's bits, by the base of the digits.
WORDS = {
    2: (1, 1),
    3: (5, 8),
    4: (1, 2),
    5: (3, 7),
    9: (5, 16),
    10: (3, 10),
    16: (1, 4),
    17: (4, 17),
    256: (1, 8),
}


def codes_of(rows: int, n: int, base: int, seed: int) -> Tensor:
    return torch.randint(0, base, (rows, n), generator=torch.Generator().manual_seed(seed)).to(
        torch.uint8
    )


@settings(deadline=None, max_examples=300)
@given(
    base=st.integers(2, 256),
    n=st.integers(1, 300),
    rows=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
@example(base=3, n=1, rows=2, seed=0)
@example(base=5, n=25, rows=3, seed=0)
@example(base=9, n=6, rows=1, seed=0)
@example(base=17, n=8, rows=2, seed=0)
@example(base=10, n=15, rows=2, seed=0)
def test_round_trip(base: int, n: int, rows: int, seed: int) -> None:
    codes = codes_of(rows, n, base, seed)
    before = codes.clone()
    packed = pack_digits(codes, base)
    digits, bits = word_of(base)
    words = -(-n // digits)
    size = words * (bits // 8) + -(-words // 8) * (bits % 8)  # whole bytes, and groups of eight
    assert packed.dtype == torch.uint8 and packed.shape == (rows, size)
    assert torch.equal(unpack_digits(packed, n, base), codes)
    assert torch.equal(codes, before)


def test_the_highest_digits_survive() -> None:
    """The largest digits, also next to zeros, would reveal a wrong sign or a rounded quotient."""
    for base in range(2, 257):
        n = 2 * word_of(base)[0] + 1
        for pattern in (
            torch.full((n,), base - 1),
            torch.arange(n) % 2 * (base - 1),
            torch.arange(n) == 0,
        ):
            codes = pattern.to(torch.uint8).expand(2, n)
            assert torch.equal(unpack_digits(pack_digits(codes, base), n, base), codes), base


@each("base", [3, 5, 6, 9])
def test_every_word_tells_its_digits(base: int) -> None:
    digits, _bits = word_of(base)
    numbers = torch.arange(base**digits)
    # The digits of every number that a word can hold, one word each.
    codes = (
        torch.stack([numbers // base**k % base for k in range(digits)]).to(torch.uint8).view(1, -1)
    )
    assert torch.equal(unpack_digits(pack_digits(codes, base), codes.shape[1], base), codes)


@each("base", WORDS)
def test_words(base: int) -> None:
    assert word_of(base) == WORDS[base]


def test_a_digit_costs_its_information_within_five_percent() -> None:
    for base in range(2, 257):
        digits, bits = word_of(base)
        information = math.log2(base)
        assert information <= bits / digits <= min(1.05 * information, math.ceil(information)), base
        assert base**digits <= 2**bits, base


@each(
    ("base", "n", "expected"),
    [(3, 40, 8), (3, 41, 9), (5, 24, 7), (5, 25, 14), (9, 5, 2), (9, 6, 4)],
)
def test_bytes_by_hand(base: int, n: int, expected: int) -> None:
    """Eight bytes hold 40 ternary digits, seven hold 24 quinary ones, two hold 5 of base 9."""
    assert pack_digits(codes_of(1, n, base, n), base).shape == (1, expected)


@each("width", range(1, 9))
def test_powers_of_two_are_plain_bits(width: int) -> None:
    codes = codes_of(2, 77, 2**width, 0)
    assert torch.equal(pack_digits(codes, 2**width), pack(codes, width))


@each("base", [3, 5, 9, 10, 17])
def test_rows_of_a_gathered_message_need_no_alignment(base: int) -> None:
    codes = codes_of(3, 53, base, 5)
    message = torch.cat([torch.zeros(3, 1, dtype=torch.uint8), pack_digits(codes, base)], dim=1)
    assert torch.equal(unpack_digits(message[:, 1:], 53, base), codes)
