"""A decoder of messages in plain Python, written from gcbench/core/codecs/README.md.

It uses none of gcbench's code, so that it reads what is on the wire and not what we believe is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

Value = Callable[[int, list[float]], float]


def word_of(base: int) -> tuple[int, int]:
    """Return the number of digits in a word, and its number of bits."""

    def waste(bits: int) -> float:
        digits = digits_in(bits)
        return bits / digits if digits else math.inf

    def digits_in(bits: int) -> int:
        return max(d for d in range(bits + 1) if base**d <= 1 << bits)

    shortest = 1.05 * math.log2(base)
    best = min((1, 2, 3, 4, 5, 6, 7, 8, 16), key=waste)
    if waste(best) > shortest:
        best = next(bits for bits in range(1, 32) if waste(bits) <= shortest)
    return digits_in(best), best


def unpack(data: bytes, n: int, width: int) -> list[int]:
    """Read n numbers of up to 8 bits."""
    if width == 8:
        return list(data[:n])
    bits = int.from_bytes(data[: width * -(-n // 8)], "little")
    digits = f"{bits:0{n * width}b}"[::-1]
    return [int(digits[i * width : (i + 1) * width][::-1], 2) for i in range(n)]


def unpack_wide(data: bytes, n: int, bits: int) -> list[int]:
    """Read n numbers of any width: their lowest bytes, the next ones, and then the rest."""
    numbers, start = [0] * n, 0
    for shift in range(0, bits, 8):
        width = min(8, bits - shift)
        part = unpack(data[start:], n, width)
        numbers = [number | each << shift for number, each in zip(numbers, part, strict=True)]
        start += wide_bytes(n, width)
    return numbers


def wide_bytes(n: int, bits: int) -> int:
    return bits // 8 * n + bits % 8 * -(-n // 8)


def unpack_digits(data: bytes, n: int, base: int) -> list[int]:
    digits, bits = word_of(base)
    m = -(-n // digits)
    words = unpack_wide(data, m, bits)
    return [words[i // digits] // base ** (i % digits) % base for i in range(n)]


def floats(data: bytes) -> list[float]:
    return [value for (value,) in struct.iter_unpack("<f", data)]


def to_float(value: float) -> float:
    """Round to float32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def parts(run: range, size: int) -> list[range]:
    return [run[i : i + size] for i in range(0, len(run), size)]


def buckets_of(sizes: Sequence[int], bucket: int | None) -> list[range]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    tensors = [range(start, start + n) for start, n in zip(starts, sizes, strict=True)]
    return [run for tensor in tensors for run in parts(tensor, bucket or len(tensor))]


def read_buckets(
    data: bytes, sizes: Sequence[int], bucket: int | None, base: int, count: int, value: Value
) -> list[float]:
    """Read codes below `base`, and `count` numbers for each bucket, which `value` takes."""
    buckets = buckets_of(sizes, bucket)
    codes = unpack_digits(data, sum(sizes), base)
    sent = floats(data[len(data) - 4 * count * len(buckets) :])
    return [
        value(codes[i], sent[count * k : count * (k + 1)])
        for k, run in enumerate(buckets)
        for i in run
    ]


def on_grid(highest: int) -> Value:
    return lambda code, sent: to_float(to_float((code - highest / 2) / (highest / 2)) * sent[0])


def read_elias(
    data: bytes, sizes: Sequence[int], bucket: int, levels: int, sparse: bool
) -> list[float]:
    """Read the stream of codes, the lengths of its blocks, and the scales of buckets."""
    buckets, blocks = buckets_of(sizes, bucket), buckets_of(sizes, min(bucket, 2048))
    lengths_at = len(data) - 4 * len(buckets) - 2 * len(blocks)
    lengths = struct.unpack_from(f"<{len(blocks)}h", data, lengths_at)
    stream = int.from_bytes(data[:lengths_at], "little")
    scales, magnitudes, at = floats(data[lengths_at + 2 * len(blocks) :]), [0] * sum(sizes), 0

    def omega() -> int:
        nonlocal at
        k = 1
        while bit():
            digits = [1, *(bit() for _ in range(k))]
            k = int("".join(map(str, digits)), 2)
        return k

    def bit() -> int:
        nonlocal at
        at += 1
        return stream >> (at - 1) & 1

    for block, length in zip(blocks, lengths, strict=True):
        stream, at, place = stream >> at, 0, -1
        while at < length:
            place += omega() if sparse else 1
            k = None if sparse else omega() - 1
            sign = -1 if k != 0 and bit() else 1
            magnitudes[block[place]] = sign * (omega() if k is None else k)
    values = [0.0] * len(magnitudes)
    for run, scale in zip(buckets, scales, strict=True):
        for i in run:
            values[i] = to_float(to_float(magnitudes[i] / levels) * scale)
    return values


def read_natural(data: bytes, n: int) -> list[float]:
    signs = unpack(data[n:], n, 1)
    powers = [2.0 ** (e - 127) if e else 0.0 for e in data[:n]]
    return [-p if sign else p for p, sign in zip(powers, signs, strict=True)]


def read_top_k(data: bytes, sizes: Sequence[int], fraction: float, packed: bool) -> list[float]:
    counts = [max(1, int(fraction * n + 1e-6)) for n in sizes]
    sent = floats(data[len(data) - 4 * sum(counts) :])
    values, start, at = [0.0] * sum(sizes), 0, 0
    for n, k in zip(sizes, counts, strict=True):
        bits = (n - 1).bit_length() if packed else 32
        size = wide_bytes(k, bits)
        if packed and -(-n // 8) < size:
            size = -(-n // 8)
            chosen = [i for i, bit in enumerate(unpack(data[at:], n, 1)) if bit]
        elif packed:
            chosen = unpack_wide(data[at:], k, bits)
        else:
            chosen = list(struct.unpack_from(f"<{k}i", data, at))
        at += size
        for i in chosen:
            values[start + i] = sent.pop(0)
        start += n
    return values
