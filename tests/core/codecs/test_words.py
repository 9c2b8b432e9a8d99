"""Codes of rows are unpacked unchanged from 32-bit words, which are as dense as promised."""

from __future__ import annotations

import torch
from nightly import each
from torch import Tensor

from gcbench.core.codecs.radix import from_words, rows_of, to_words, word_of, words_of

BASES = [2, 3, 4, 5, 6, 7, 9, 15, 16, 17, 31, 32, 33, 64, 127, 128, 200, 256]


def codes_of(base: int, row: int = 11, groups: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(base)
    return torch.randint(
        0, base, (2, groups, rows_of(base), row), generator=generator, dtype=torch.int32
    )


def pack_codes(codes: Tensor, base: int) -> Tensor:
    return torch.stack(to_words(codes, base), dim=-2)


@each("base", BASES)
def test_round_trip(base: int) -> None:
    for codes in (
        codes_of(base),
        torch.full_like(codes_of(base), base - 1),
        torch.zeros_like(codes_of(base)),
    ):
        words = pack_codes(codes, base)
        assert words.dtype == torch.int32
        assert words.shape == (2, 3, words_of(base), 11)
        assert torch.equal(from_words(words, base), codes)


@each("base", BASES)
def test_no_bit_is_wasted_but_those_of_the_words_of_digits(base: int) -> None:
    digits, bits = word_of(base)
    assert 32 * words_of(base) * digits == bits * rows_of(base)


@each("base", [3, 5, 9])
def test_every_word_tells_its_digits(base: int) -> None:
    digits, _ = word_of(base)
    numbers = torch.arange(base**digits)
    rows = torch.stack([numbers // base**k % base for k in range(digits)]).to(torch.int32)
    codes = rows.repeat(rows_of(base) // digits, 1).unsqueeze(0)
    assert torch.equal(from_words(pack_codes(codes, base), base), codes)
