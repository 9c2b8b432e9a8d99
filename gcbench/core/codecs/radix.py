"""Codes of any number of values packed into bytes, at close to log2(values) bits each.

Several digits share a word. A word of k base-s digits is the number d_0 + d_1 s + ... + d_(k-1)
s^(k-1). Of the words of 1 to 8 or 16 bits, the one with the fewest bits per digit is used, and the
shortest among equals: 5 ternary digits in 8 bits (1.6 bits per digit; log2(3) = 1.58), 3 quinary
digits in 7, 5 digits of base 9 in 16. If that is more than 5 % above log2(s), the shortest word of
any length that is not is used: 4 digits of base 17 in 17 bits. Powers of two are plain bits.

A word has consecutive digits. The lowest bytes of all words come first, then the next ones, and at
last the rest of their bits, as in `packing`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.native import is_native
from gcbench.core.codecs.packing import (
    bytes_of,
    join_numbers,
    pack_native,
    packed_bytes,
    part_numbers,
)

_WORD_BITS = (1, 2, 3, 4, 5, 6, 7, 8, 16)  # the word lengths for which codecs are fastest
_LONGEST_WORD = 31  # the bits of a non-negative int32
_SLACK = 1.05


def word_of(base: int) -> tuple[int, int]:
    """Return the number of digits in a word, and its number of bits."""
    assert 2 <= base <= 256, "a code is a byte of at least two values"
    return _WORDS[base]


def unit_of(base: int) -> int:
    """Return the number of digits whose words are whole bytes."""
    return 8 * word_of(base)[0]


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


def pack_digits(codes: Tensor, base: int) -> Tensor:
    """Return uint8 codes `[w, n]` below `base` packed into uint8 `[w, bytes]`."""
    if is_native(codes, torch.uint8):
        n = codes.shape[1]
        return pack_native(codes, n, packed_digits(n, base), base, word_of(base))
    padded = F.pad(codes, (0, -codes.shape[1] % unit_of(base)))
    return pack_padded(padded, codes.shape[1], base)


def pack_padded(codes: Tensor, n: int, base: int) -> Tensor:
    """Return what `pack_digits` does of n codes, with zeros behind them up to whole units."""
    return bytes_of_digits(_join(codes, base), n, base)


def unpack_digits(packed: Tensor, n: int, base: int) -> Tensor:
    """Return uint8 codes `[w, n]`: the inverse of `pack_digits`."""
    if is_native(packed, torch.uint8):
        return pack_native(packed, n, packed_digits(n, base), base, word_of(base), back=True)
    return _part(packed, n, base)


def packed_digits(n: int, base: int) -> int:
    """Return how many bytes `pack_digits` makes of n codes."""
    return sum(_split(n, base))


def _split(n: int, base: int) -> list[int]:
    """Return how many bytes of each width there are."""
    digits, bits = word_of(base)
    return [packed_bytes(-(-n // digits), width) for width in _widths(bits)]


def join_digits(codes: Tensor, base: int) -> list[Tensor]:
    """Return the words of whole units of digits `[w, n]`, byte by byte, as `join_numbers` does."""
    digits, bits = word_of(base)
    *others, word = codes.to(torch.int32).unflatten(1, (-1, digits)).unbind(2)
    for digit in reversed(others):
        word = word * base + digit
    each = [word >> (8 * i) & 0xFF for i in range(len(_widths(bits)))]
    return [join_numbers(x, width) for x, width in zip(each, _widths(bits), strict=True)]


_join = kernel(join_digits)


def bytes_of_digits(words: Sequence[Tensor], n: int, base: int) -> Tensor:
    """Return the bytes `[w, bytes]` of n digits, from what `join_digits` returns."""
    widths = _widths(word_of(base)[1])
    each = [
        bytes_of(x, width)[:, :size]
        for x, width, size in zip(words, widths, _split(n, base), strict=True)
    ]
    return torch.cat(each, dim=1) if len(each) > 1 else each[0]


def part_digits(packed: Tensor, n: int, base: int) -> Tensor:
    """Return the codes `[w, n]`, uint8, in packed rows."""
    digits, bits = word_of(base)
    count = -(-n // digits)
    parts = [
        part_numbers(part, width)[:, :count]
        for part, width in zip(packed.split(_split(n, base), dim=1), _widths(bits), strict=True)
    ]
    if digits == 1:
        return parts[0]
    exact = torch.float32 if bits <= 21 else torch.float64
    word = parts[0].to(torch.int32)
    for i, part in enumerate(parts[1:], start=1):
        word = word | part.to(torch.int32) << (8 * i)
    # Floating-point division is several times faster than integer division. Adding 0.5, which is
    # exact, keeps every quotient at least 0.5 / power away from an integer, so that its floor is
    # right even where a device multiplies by the reciprocal.
    above = (word.to(exact) + 0.5).unsqueeze(2)
    powers = torch.tensor([float(base**j) for j in range(digits)], dtype=exact, device=word.device)
    found = torch.floor(above / powers) - base * torch.floor(above / (powers * base))
    return found.to(torch.uint8).flatten(1)[:, :n]


_part = kernel(part_digits)


def _widths(bits: int) -> list[int]:
    """Return the widths of the bytes, lowest first, that a word of `bits` bits is split into."""
    return [min(8, bits - start) for start in range(0, bits, 8)]
