"""Elias codes: the omega code is as defined, and streams decode to what was encoded.

The paper's bounds are in tests/papers.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import each
from torch import Tensor

from gcbench.core.codecs.elias import LONGEST_BLOCK, Blocks, omega
from gcbench.core.codecs.elias_codes import (
    decode_dense,
    decode_sparse,
    dense_code,
    encode_dense,
    encode_sparse,
    sparse_code,
)

CODES = {"dense": (encode_dense, decode_dense), "sparse": (encode_sparse, decode_sparse)}
both = pytest.mark.parametrize("kind", CODES)


# The code of an integer


def groups(k: int) -> list[int]:
    """Return Elias's groups (1975): k last, before it the length of its binary form minus 1, ..."""
    return [] if k == 1 else [*groups(math.floor(math.log2(k))), k]


def by_definition(k: int) -> str:
    return "".join(map("{:b}".format, groups(k))) + "0"


def read_omega(bits: str) -> tuple[int, int]:
    """Return the number whose code `bits` starts with, and the length of that code."""
    k, at = 1, 0
    while bits[at] == "1":
        k, at = int(bits[at : at + k + 1], 2), at + k + 1
    return k, at + 1


def test_omega_is_as_defined() -> None:
    for k in [*range(1, 3000), *(2**i + d for i in range(12, 21) for d in (-1, 0, 1))]:
        assert omega(k) == by_definition(k)
        assert read_omega(omega(k) + "10110") == (k, len(omega(k)))


def test_omega_of_the_first_integers_by_hand() -> None:
    assert [
        omega(k) for k in (1, 2, 3, 4, 7, 8, 16)
    ] == "0 100 110 101000 101110 1110000 10100100000".split()


@each("levels", [1, 2, 7, 127])
def test_no_code_begins_another(levels: int) -> None:
    dense = [dense_code(code, levels) for code in range(2 * levels + 1)]
    sparse = [sparse_code(code, levels) for code in range(2 * levels + 1) if code != levels]
    for codes in (dense, sparse, [omega(k) for k in range(1, 2049)]):
        codes = sorted(codes)  # a prefix would come right before a code that it begins
        assert not any(after.startswith(before) for before, after in itertools.pairwise(codes))
        assert len(set(codes)) == len(codes)


def test_a_length_always_fits_16_bits_and_a_code_a_word() -> None:
    dense = max(len(dense_code(code, 127)) for code in range(255))
    value = max(len(sparse_code(code, 127)) for code in (0, 254))
    distances = [len(omega(k)) for k in range(1, LONGEST_BLOCK + 1)]
    sparse = max((length + value) / k for k, length in enumerate(distances, start=1))
    assert max(dense, sparse) * LONGEST_BLOCK < 2**15
    assert max(distances) + value <= 33


# Streams


@cache
def dense_text(code: int, levels: int) -> str:
    k = abs(code - levels)
    return by_definition(k + 1) + ("" if k == 0 else "01"[code < levels])


def text_of(block: list[int], levels: int, kind: str) -> str:
    if kind == "dense":
        return "".join(dense_text(code, levels) for code in block)
    text, before = "", -1
    for place, code in enumerate(block):
        if code != levels:
            text += (
                by_definition(place - before)
                + "01"[code < levels]
                + by_definition(abs(code - levels))
            )
            before = place
    return text


def texts(row: Tensor, segments: tuple[int, ...], size: int, levels: int, kind: str) -> list[str]:
    """Return the bits of every block as text."""
    return [
        text_of(part.tolist(), levels, kind)
        for segment in row.split(segments)
        for part in segment.split(size)
    ]


def as_text(stream: Tensor, bits: int) -> str:
    return "".join(f"{byte:08b}"[::-1] for byte in stream.tolist())[:bits]


def random_codes(rows: int, n: int, levels: int, zeros: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 2 * levels + 1, (rows, n), generator=generator)
    return codes.where(torch.rand(rows, n, generator=generator) >= zeros, levels).to(torch.uint8)


@both
@settings(deadline=None, max_examples=40)
@given(
    levels=st.sampled_from([1, 2, 3, 7, 8, 15, 127]),
    segments=st.lists(st.integers(1, 70), min_size=1, max_size=4).map(tuple),
    size=st.integers(1, 70),
    zeros=st.sampled_from([0.0, 0.5, 0.97, 1.0]),
    seed=st.integers(0, 99),
)
def test_streams_hold_the_bits_of_the_definition_and_nothing_else(
    kind: str, levels: int, segments: tuple[int, ...], size: int, zeros: float, seed: int
) -> None:
    encode, decode = CODES[kind]
    blocks, codes = Blocks(segments, size), random_codes(3, sum(segments), levels, zeros, seed)
    streams, lengths = encode(codes, blocks, levels)
    expected = [texts(row, segments, size, levels, kind) for row in codes]
    assert lengths.tolist() == [list(map(len, row)) for row in expected]
    assert streams.shape[1] == max(math.ceil(len("".join(row)) / 8) for row in expected)
    for stream, row in zip(streams, expected, strict=True):
        assert as_text(stream, len("".join(row))) == "".join(row)
        assert not any(stream[math.ceil(len("".join(row)) / 8) :])
    assert torch.equal(decode(streams, lengths, blocks, levels), codes)
    second = decode(streams[1:2], lengths[1:2], blocks, levels)
    assert torch.equal(second, codes[1:2])


@both
@pytest.mark.parametrize("levels", [1, 3, 7, 15, 127])
@pytest.mark.parametrize(
    ("segments", "size", "zeros"),
    [
        ((150_001,), 512, 0.3),  # several chunks
        ((150_001,), 2048, 0.99),
        ((70_000, 3, 70_001), 2047, 0.0),
        ((1,), 2048, 0.0),
        ((4096,), 2048, 1.0),  # nothing to send
    ],
)
def test_decoding_gives_what_was_encoded(
    kind: str, levels: int, segments: tuple[int, ...], size: int, zeros: float
) -> None:
    encode, decode = CODES[kind]
    codes = random_codes(2, sum(segments), levels, zeros, seed=levels)
    blocks = Blocks(segments, size)
    streams, lengths = encode(codes, blocks, levels)
    assert torch.equal(decode(streams, lengths, blocks, levels), codes)


@both
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_streams_shorter_than_a_word_come_back(kind: str, n: int, rows: int) -> None:
    encode, decode = CODES[kind]
    codes, blocks = torch.full((rows, n), 1, dtype=torch.uint8), Blocks((n,), 8)
    codes[0, 0] = 0
    streams, lengths = encode(codes, blocks, 1)
    assert torch.equal(decode(streams, lengths, blocks, 1), codes)


@both
def test_extreme_blocks_come_back(kind: str) -> None:
    """The largest block has the longest codes, or the longest distance before a largest value."""
    encode, decode = CODES[kind]
    last = torch.full((1, LONGEST_BLOCK), 127, dtype=torch.uint8)
    last[0, -1] = 0
    for codes in (torch.zeros(1, LONGEST_BLOCK, dtype=torch.uint8), last):
        blocks = Blocks((LONGEST_BLOCK,), LONGEST_BLOCK)
        streams, lengths = encode(codes, blocks, 127)
        assert lengths.item() <= 15 * LONGEST_BLOCK
        assert torch.equal(decode(streams, lengths, blocks, 127), codes)
