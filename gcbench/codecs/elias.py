"""Elias's omega code (Elias 1975, "recursive Elias coding"), and the codes that QSGD builds on it.

Grid codes run from 0 to 2 s, where s stands for zero and k = |code - s| is the magnitude. No code
is a prefix of another; in the dense code, the magnitude tells whether a sign follows:

    dense:  for every value   omega(k + 1), the sign where k > 0
    sparse: for every k > 0   omega(distance from the one before), the sign, omega(k)

Blocks of up to 2048 codes are encoded independently, and each block's length in bits is sent beside
the stream, so that all blocks are decoded in parallel. The stream has no padding between blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import Array, c_int64

import torch
from torch import Tensor

from gcbench.codecs.bitstream import BitReader
from gcbench.codecs.blocks import Blocks
from gcbench.codecs.kernels import block_slices
from gcbench.codecs.native import address, load_native

# With at most 127 levels a value takes at most 15 bits (dense: 14 and a sign; sparse: 1 for the
# distance, a sign, and 13) and a block at most 30,720, so that 16 bits hold its length. No distance
# takes more than 19 bits, so that 33 bits hold any distance, sign and magnitude.
LONGEST_BLOCK = 2048

# How many blocks a core decodes together: enough that the work of a step outweighs the overhead of
# its calls, few enough to stay in cache.
_LANES = 8192


def omega(k: int) -> str:
    """Return Elias's omega code of k >= 1.

    It ends in "0"; before that comes k in binary, before that k's number of binary digits minus
    one, also in binary, and so on down to 1.
    """
    code = "0"
    while k > 1:
        code = f"{k:b}{code}"
        k = k.bit_length() - 1
    return code


def sign(code: int, levels: int) -> str:
    return "1" if code < levels else "0"


def as_number(code: str) -> int:
    """Return a code as a number whose lowest bit is the code's first, as in streams."""
    return int(f"0{code[::-1]}", 2)


def as_numbers(codes: list[str], device: torch.device) -> Tensor:
    """Return each code as a number in the low 32 bits, with its length in the high 32 bits."""
    return torch.tensor([as_number(code) | (len(code) << 32) for code in codes], device=device)


def first_codes(codes: list[str]) -> tuple[Tensor, Tensor]:
    """Return the index and the length of the code that each number begins with, `[2^longest]` each.

    A number begins with its lowest bit. `codes` are prefix-free; a length of 0 means that the
    number begins with none of them.
    """
    size = 1 << max(map(len, codes))
    first = torch.zeros(size, dtype=torch.int64)
    lengths = torch.zeros(size, dtype=torch.int64)
    for i, code in enumerate(codes):
        first[as_number(code) :: 1 << len(code)] = i
        lengths[as_number(code) :: 1 << len(code)] = len(code)
    return first, lengths


def borders(reader: BitReader, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places `[r blocks]` where blocks of lengths `[r, blocks]` start and end.

    Raises ValueError if a block is outside its stream.
    """
    refuse_lengths(lengths, reader.bytes)
    ends = lengths.to(torch.int64).cumsum(1) + reader.starts
    return (ends - lengths).flatten(), ends.flatten()


def refuse_lengths(lengths: Tensor, size: int) -> None:
    """Raise ValueError if a block is outside its stream of `size` bytes."""
    if bool((lengths < 0).any() | (lengths.sum(1) > 8 * size).any()):
        raise ValueError(
            "the lengths of the blocks are wrong: one is negative, or they exceed the "
            f"{8 * size} bits of the longest stream"
        )


def encode_native(
    codes: Tensor, blocks: Blocks, numbers: Tensor, distances: Tensor | None, levels: int
) -> tuple[Tensor, Tensor]:
    """Return streams and lengths of codes `[w, n]` by native code.

    `numbers` are of each code, and `distances` those of distances, each below its length in bits
    << 32; without them, the code is dense.
    """
    codes, rows = codes.contiguous(), len(codes)
    lengths = torch.empty(rows, sum(blocks.counts), dtype=torch.int16)
    given = codes.data_ptr(), rows, *_sizes(blocks), address(numbers), address(distances), levels
    threads = torch.get_num_threads()
    load_native().elias_encode(*given, address(lengths), None, 0, threads)
    size = (int(lengths.sum(1).max()) + 7) // 8
    streams = torch.zeros(rows, size // 4 + 1, dtype=torch.int32)
    of_streams = address(streams), streams.shape[1]
    load_native().elias_encode(*given, address(lengths), *of_streams, threads)
    return streams.view(torch.uint8)[:, :size], lengths


def decode_native(
    streams: Tensor,
    lengths: Tensor,
    blocks: Blocks,
    first: Tensor,
    second: Tensor | None,
    levels: int,
) -> Tensor:
    """Return codes `[r, n]` by native code, from a table of runs, or of distances and codes."""
    refuse_lengths(lengths, streams.shape[1])
    streams, lengths = streams.contiguous(), lengths.contiguous()
    codes = torch.empty(len(streams), sum(blocks.segments), dtype=torch.uint8)
    tables = (
        address(first),
        len(first) - 1,
        address(second),
        0 if second is None else len(second) - 1,
    )
    load_native().elias_decode(
        *(address(streams), *streams.shape, address(lengths), *_sizes(blocks), *tables, levels),
        *(address(codes), torch.get_num_threads()),
    )
    return codes


def _sizes(blocks: Blocks) -> tuple[int, Array[c_int64], int]:
    count = len(blocks.segments)
    return count, (c_int64 * count)(*blocks.segments), blocks.size


def lanes(starts: Tensor) -> Iterator[slice]:
    """Return slices of blocks to decode in lockstep; on a GPU, one slice of all blocks."""
    return block_slices(len(starts), 1, starts.device, _LANES)
