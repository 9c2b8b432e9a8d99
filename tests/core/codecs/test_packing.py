"""Codes are unpacked unchanged, and take exactly their width."""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import each
from torch import Tensor

from gcbench.core.codecs.packing import pack, packed_bytes, unpack, width_of

WIDTHS = range(1, 9)


def codes_of(rows: int, n: int, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2**width, (rows, n), generator=generator).to(torch.uint8)


@settings(deadline=None)
@given(
    width=st.sampled_from(WIDTHS),
    n=st.integers(1, 300),
    rows=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
@example(width=3, n=1, rows=2, seed=0)
@example(width=5, n=7, rows=3, seed=0)
@example(width=6, n=8, rows=1, seed=0)
@example(width=7, n=9, rows=4, seed=0)
def test_round_trip(width: int, n: int, rows: int, seed: int) -> None:
    codes = codes_of(rows, n, width, seed)
    before = codes.clone()
    packed = pack(codes, width)
    assert packed.dtype == torch.uint8
    assert torch.equal(unpack(packed, n, width), codes)
    assert torch.equal(codes, before)


@each("n", [1, 7, 8, 9, 16, 513])
@each("width", WIDTHS)
def test_bytes_are_those_of_whole_groups_of_eight(width: int, n: int) -> None:
    expected = n if width == 8 else {1: 1, 7: 1, 8: 1, 9: 2, 16: 2, 513: 65}[n] * width
    assert packed_bytes(n, width) == expected
    assert pack(codes_of(3, n, width, n), width).shape == (3, expected)


@each("code", [0, 1, "highest"])
@each("width", WIDTHS)
def test_extreme_codes_survive(width: int, code: int | str) -> None:
    """The sign bit of a wide word does not leak into other codes."""
    codes = torch.full((2, 17), 2**width - 1 if code == "highest" else int(code), dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes, width), 17, width), codes)


@each("width", WIDTHS)
def test_rows_of_a_gathered_message_need_no_alignment(width: int) -> None:
    codes = codes_of(3, 11, width, 5)
    packed = pack(codes, width)
    # Here rows begin at odd addresses.
    message = torch.cat([torch.zeros(3, 1, dtype=torch.uint8), packed], dim=1)
    assert torch.equal(unpack(message[:, 1:], 11, width), codes)


def test_every_bit_pattern_is_used() -> None:
    """The two bytes of 16 one-bit codes differ for all 65536 combinations of codes."""
    numbers = torch.arange(2**16)
    codes = torch.stack([numbers >> k & 1 for k in range(16)], dim=1).to(torch.uint8)
    packed = pack(codes, 1).to(torch.int64)
    assert (packed[:, 0] * 256 + packed[:, 1]).unique().numel() == 2**16


@each(
    ("values", "width"),
    [(2, 1), (3, 2), (4, 2), (5, 3), (15, 4), (16, 4), (17, 5), (255, 8), (256, 8)],
)
def test_width_of_a_code(values: int, width: int) -> None:
    assert width_of(values) == width
