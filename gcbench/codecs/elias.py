"""Elias's omega code (Elias 1975, "recursive Elias coding"), and the codes that QSGD makes of it.

Codes on a grid are 0 to 2 s, s stands for zero, k = |code - s| is the magnitude. The magnitude
comes before the sign, whose presence it tells, so that no code is the beginning of another:

    dense:  for every value   omega(k + 1), the sign where k > 0
    sparse: for every k > 0   omega(distance from the one before), the sign, omega(k)

A block of up to 2048 codes is coded by itself and its number of bits is sent beside the stream: all
blocks are decoded at once. In the stream a worker's blocks follow each other without padding.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gcbench.codecs.bitstream import BitReader
from gcbench.codecs.kernels import block_slices

# With at most 127 levels a value costs at most 15 bits (dense 14 and a sign; sparse a distance of
# 1, a sign, 13), a block 30,720: 16 bits hold its length. No distance takes more than 19 bits, so
# that 33 hold any distance, sign and magnitude.
LONGEST_BLOCK = 2048

# Blocks that a core decodes together: enough for a step's arrays to outweigh its calls, few enough
# to stay in cache.
_LANES = 8192


def omega(k: int) -> str:
    """Return Elias's omega code of k >= 1.

    It ends in "0"; before that comes k in binary, before that the number of its digits less one,
    and so on down to 1.
    """
    code = "0"
    while k > 1:
        code = f"{k:b}{code}"
        k = k.bit_length() - 1
    return code


def sign(code: int, levels: int) -> str:
    return "1" if code < levels else "0"


def as_number(code: str) -> int:
    """Return a code as a number with the first bit lowest, as streams hold it."""
    return int(f"0{code[::-1]}", 2)


def first_codes(codes: list[str]) -> tuple[Tensor, Tensor]:
    """Return, for all numbers `[2^longest]`, the code with which their bits begin, and its length.

    `codes` are prefix-free; a length of 0 says that the bits begin with none of them.
    """
    size = 1 << max(map(len, codes))
    first = torch.zeros(size, dtype=torch.int64)
    lengths = torch.zeros(size, dtype=torch.int64)
    for i, code in enumerate(codes):
        first[as_number(code) :: 1 << len(code)] = i
        lengths[as_number(code) :: 1 << len(code)] = len(code)
    return first, lengths


def borders(reader: BitReader, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places `[r blocks]` where blocks of `[r, blocks]` lengths start and end.

    Raises ValueError where they lie outside the stream.
    """
    ends = lengths.to(torch.int64).cumsum(1) + reader.starts
    if bool((lengths < 0).any() | (ends[:, -1:] > reader.ends).any()):
        raise ValueError(
            f"the lengths of the blocks add up to other bits than the {8 * reader.bytes} of the "
            "longest stream"
        )
    return (ends - lengths).flatten(), ends.flatten()


def lanes(starts: Tensor) -> Iterator[slice]:
    """Return slices of blocks that are decoded in lockstep; on a GPU one slice of all."""
    return block_slices(len(starts), 1, starts.device, _LANES)
