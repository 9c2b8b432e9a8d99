"""Codes of many rows of values packed into 32-bit words, by kernels.

Codes are packed as in `radix` and `packing`, but across the rows of a group: word j of a group
holds code j of each of its rows. Rows are adjacent in memory, so that a kernel walks them side by
side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gcbench.codecs.radix import float_of, word_of


def rows_of(base: int) -> int:
    """Return how many rows make a group that fills whole words."""
    digits, bits = word_of(base)
    return digits * _numbers_of(bits)


def words_of(base: int) -> int:
    """Return how many words a group has for each value of a row."""
    _, bits = word_of(base)
    return _numbers_of(bits) * bits // 32


def _numbers_of(bits: int) -> int:
    return 32 // math.gcd(32, bits)


def to_words(codes: Tensor, base: int) -> list[Tensor]:
    """Return int32 codes `[..., rows, row]` below `base` as int32 words `[..., row]`."""
    digits, bits = word_of(base)
    numbers = _number(codes.unflatten(-2, (-1, digits)).unbind(-2), base)
    if 32 % bits == 0:
        return [_number(numbers.unbind(-2), 1 << bits)]
    return [_word(numbers, bits, i) for i in range(words_of(base))]


def _number(digits: Sequence[Tensor], base: int) -> Tensor:
    """Return d_0 + d_1 base + d_2 base^2 + ..., by Horner's rule.

    This takes one operation per digit, where shifts and ors would take two.
    """
    number = digits[-1]
    for digit in reversed(digits[:-1]):
        number = torch.add(digit, number, alpha=base)
    return number


def _word(numbers: Tensor, bits: int, i: int) -> Tensor:
    """Return the i-th 32-bit word of the concatenated bits of all numbers, lowest first."""
    word = None
    for k, number in enumerate(numbers.unbind(-2)):
        shift = bits * k - 32 * i
        if -bits < shift < 32:
            part = number << shift if shift >= 0 else number >> -shift
            word = part if word is None else word | part
    assert word is not None
    return word


def from_words(words: Tensor, base: int) -> Tensor:
    """Return int32 codes `[..., rows, row]` of words `[..., words, row]`: inverts `to_words`."""
    digits, bits = word_of(base)
    numbers = _numbers(words, bits)
    if digits == 1:
        return numbers
    # Floating-point division is vectorized, integer division is not. Adding 0.5 keeps every
    # quotient at least 0.5 / power away from an integer, so that its floor is right even where a
    # device multiplies by the reciprocal.
    exact = float_of(bits)
    halves = numbers.unsqueeze(-2).to(exact) + 0.5
    powers = torch.tensor(
        [base**j for j in range(digits)], dtype=exact, device=words.device
    ).unsqueeze(-1)
    digit_values = torch.floor(halves / powers) - base * torch.floor(halves / (powers * base))
    return digit_values.flatten(-3, -2).to(torch.int32)


def _numbers(words: Tensor, bits: int) -> Tensor:
    """Return the numbers that words hold, `[..., words, row] -> [..., numbers, row]`."""
    places = (
        torch.arange(_numbers_of(bits), dtype=torch.int32, device=words.device).unsqueeze(-1) * bits
    )
    shifts = places % 32
    if words.shape[-2] == 1:
        return (words >> shifts) & ((1 << bits) - 1)
    index = (places // 32).squeeze(-1).long()
    low = (words.index_select(-2, index) >> shifts) & torch.where(
        shifts > 0, (1 << (32 - shifts)) - 1, -1
    )
    above = words.index_select(-2, (index + 1).clamp_max(words.shape[-2] - 1))
    return (low | torch.where(shifts + bits > 32, above << (32 - shifts), 0)) & ((1 << bits) - 1)
