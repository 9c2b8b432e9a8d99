"""Codes of any number of values packed into bytes, at close to log2(values) bits each.

Several digits share a word. A word of k base-s digits is the number d_0 + d_1 s + ... + d_(k-1)
s^(k-1). Of the words of 1 to 8 or 16 bits, the one with the fewest bits per digit is used, and the
shortest among equals: 5 ternary digits in 8 bits (1.6 bits per digit; log2(3) = 1.58), 3 quinary
digits in 7, 5 digits of base 9 in 16. If that is more than 5 % above log2(s), the shortest word of
any length that is not is used: 4 digits of base 17 in 17 bits. Powers of two are plain bits.

The layout is planar, as in `packing`: with m = ceil(n / k) words, the values j, j + m, j + 2 m, ...
share word j.

Kernels pack codes of many rows of values into 32-bit words across the rows of a group: word j of a
group holds code j of each of its rows, which are adjacent in memory, so that a kernel walks them
side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.packing import pack, packed_bytes, unpack

_WORD_BITS = (1, 2, 3, 4, 5, 6, 7, 8, 16)  # the word lengths for which codecs are fastest
_LONGEST_WORD = 31  # the bits of a non-negative int32
_SLACK = 1.05


def word_of(base: int) -> tuple[int, int]:
    """Return the number of digits in a word, and its number of bits."""
    assert 2 <= base <= 256, "a code is a byte of at least two values"
    return _WORDS[base]


def _shortest_word(base: int) -> tuple[int, int]:
    words = [(_digits_in(bits, base), bits) for bits in range(1, _LONGEST_WORD + 1)]
    digits, bits = min(
        (word for word in words if word[0] and word[1] in _WORD_BITS),
        key=lambda word: word[1] / word[0],
    )
    if bits <= _SLACK * digits * math.log2(base):
        return digits, bits
    return next(word for word in words if word[0] and word[1] <= _SLACK * word[0] * math.log2(base))


def _digits_in(bits: int, base: int) -> int:
    digits = 0
    while base ** (digits + 1) <= 1 << bits:
        digits += 1
    return digits


# A table, since kernels read it, and `torch.compile` does not compile all of Python.
_WORDS = {base: _shortest_word(base) for base in range(2, 257)}


def _byte_widths(bits: int) -> list[int]:
    """Return the widths of the bytes, lowest first, that a word of `bits` bits is split into."""
    return [min(8, bits - start) for start in range(0, bits, 8)]


def pack_digits(codes: Tensor, base: int) -> Tensor:
    """Return uint8 codes `[w, n]` below `base` packed into uint8 `[w, bytes]`.

    Words shorter than a byte come in groups of eight, as `pack` makes them.
    """
    digits, bits = word_of(base)
    if digits == 1:
        return pack(codes, bits)
    planes = F.pad(codes, (0, -codes.shape[1] % digits)).unflatten(1, (digits, -1))
    widths = _byte_widths(bits)
    parts = _bytes_of(planes, base, len(widths))
    return torch.cat([*map(pack, parts, widths)], dim=1)


@kernel
def _bytes_of(planes: Tensor, base: int, count: int) -> list[Tensor]:
    """Return the bytes of the words of digits `[w, digits, words]`, lowest first."""
    words = planes[:, -1].to(torch.int32)
    for k in range(planes.shape[1] - 2, -1, -1):
        words = words * base + planes[:, k]
    return [((words >> (8 * i)) & 0xFF).to(torch.uint8) for i in range(count)]


def unpack_digits(packed: Tensor, n: int, base: int) -> Tensor:
    """Return uint8 codes `[w, n]`: the inverse of `pack_digits`."""
    digits, bits = word_of(base)
    if n == 0:
        return packed
    if digits == 1:
        return unpack(packed, n, bits)
    widths, count = _byte_widths(bits), -(-n // digits)
    parts = packed.split([packed_bytes(count, width) for width in widths], dim=1)
    each = [unpack(part, count, width) for part, width in zip(parts, widths, strict=True)]
    return _digits_of(each, base, digits, bits).flatten(1)[:, :n]


@kernel
def _digits_of(parts: list[Tensor], base: int, digits: int, bits: int) -> Tensor:
    """Return the digits `[w, digits, words]` of words whose bytes are `parts`, lowest first."""
    rest = parts[0].to(float_of(bits))
    for i, part in enumerate(parts[1:], start=1):
        rest = rest + part.to(rest.dtype) * float(1 << (8 * i))
    planes = []
    for _ in range(digits - 1):
        # Floating-point division is several times faster than integer division. Adding 0.5 keeps
        # every quotient at least 0.5 / base away from an integer, so that its floor is right even
        # where a device multiplies by the reciprocal.
        quotient = torch.floor((rest + 0.5) / base)
        planes.append((rest - quotient * base).to(torch.uint8))
        rest = quotient
    return torch.stack([*planes, rest.to(torch.uint8)], dim=1)


def float_of(bits: int) -> torch.dtype:
    """Return a float type that is precise enough for `unpack_digits` on numbers of `bits` bits.

    Numbers plus 0.5 are exact, and their quotients by a base have the right floor.
    """
    return torch.float32 if bits <= 21 else torch.float64


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
