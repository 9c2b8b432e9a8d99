"""Codes of any number of values as bytes, at close to log2(values) bits each: several digits share a word.

A word of k base-s digits is the number d_0 + d_1 s + ... + d_(k-1) s^(k-1). Words have 1 to 8 bits, packed as such, or 16; of
these the one with the fewest bits a digit is used, the shortest among equals: 5 ternary digits in 8 bits (1.6 bits a digit,
log2(3) = 1.58), 3 quinary ones in 7, 5 of base 9 in 16. Powers of two are plain bits.

Planar like `packing`: with m = ceil(n / k) words, the values j, j + m, j + 2 m, ... share word j.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.codecs.packing import pack, packed_bytes, unpack

_WORD_BITS = (1, 2, 3, 4, 5, 6, 7, 8, 16)


def word_of(base: int) -> tuple[int, int]:
    """Digits in a word, and bits of the word."""
    assert 2 <= base <= 256, "a code is a byte of at least two values"
    return _WORDS[base]


def _shortest_word(base: int) -> tuple[int, int]:
    words = [(_digits_in(bits, base), bits) for bits in _WORD_BITS]
    return min((word for word in words if word[0]), key=lambda word: word[1] / word[0])


def _digits_in(bits: int, base: int) -> int:
    digits = 0
    while base ** (digits + 1) <= 1 << bits:
        digits += 1
    return digits


_WORDS = {base: _shortest_word(base) for base in range(2, 257)}  # kernels read it: not all of Python can be compiled


def digit_bytes(n: int, base: int) -> int:
    """What `n` digits cost; words of less than a byte come in groups of eight, as `pack` makes them."""
    digits, bits = word_of(base)
    words = -(-n // digits)
    return packed_bytes(words, bits) if bits <= 8 else words * bits // 8


def pack_digits(codes: Tensor, base: int) -> Tensor:
    """`[w, n]` uint8 codes below `base` to `[w, digit_bytes(n, base)]` uint8."""
    digits, bits = word_of(base)
    if digits == 1:
        return pack(codes, bits)
    planes = F.pad(codes, (0, -codes.shape[1] % digits)).unflatten(1, (digits, -1))
    words = planes[:, -1].to(torch.int32)
    for k in range(digits - 2, -1, -1):
        words = words.mul_(base).add_(planes[:, k])
    if bits <= 8:
        return pack(words.to(torch.uint8), bits)
    return words.view(torch.uint8).unflatten(1, (-1, 4))[..., :2].flatten(1)


def unpack_digits(packed: Tensor, n: int, base: int) -> Tensor:
    """The inverse of `pack_digits`: `[w, bytes]` to `[w, n]` uint8."""
    digits, bits = word_of(base)
    if n == 0:
        return packed
    if digits == 1:
        return unpack(packed, n, bits)
    # Quotients in floating point are several times faster than integer ones. With the half, none is nearer to an integer than
    # 0.5 / base, so that its floor is right even where a device multiplies by the reciprocal.
    rest = _words(packed, -(-n // digits), bits).to(torch.float32)
    planes = []
    for _ in range(digits - 1):
        quotient = (rest + 0.5).div_(base).floor_()
        planes.append(rest.sub_(quotient, alpha=base).to(torch.uint8))
        rest = quotient
    planes.append(rest.to(torch.uint8))
    return torch.stack(planes, dim=1).flatten(1)[:, :n]


def _words(packed: Tensor, count: int, bits: int) -> Tensor:
    if bits <= 8:
        return unpack(packed, count, bits)
    return F.pad(packed.unflatten(1, (-1, 2)), (0, 2)).flatten(1).view(torch.int32)
