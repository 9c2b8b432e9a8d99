"""Elias's omega code (Elias 1975, "recursive Elias coding"), and the codes that QSGD builds on it.

Grid codes run from 0 to 2 s, where s stands for zero and k = |code - s| is the magnitude. No code
is a prefix of another; in the dense code, the magnitude tells whether a sign follows:

    dense:  for every value   omega(k + 1), the sign where k > 0
    sparse: for every k > 0   omega(distance from the one before), the sign, omega(k)

Blocks of up to 2048 codes are encoded independently, and each block's length in bits is sent beside
the stream, so that all blocks are decoded in parallel. The stream has no padding between blocks.
Bit i of a stream is bit i mod 8 of byte i // 8, and the first bit of a code comes first. Places are
bit offsets into the concatenated streams of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import Array, c_int64
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.codecs.kernels import CACHED_VALUES, block_slices
from gcbench.core.codecs.native import address, load_native


class BitWriter:
    """A writer of `rows` bit streams of up to `longest` bits each.

    A code is added to the 64-bit word that starts at the last multiple of 32 bits up to its place,
    so that 33 bits fit wherever they start. Codes share no bits, so that adding joins them.
    """

    def __init__(self, rows: int, longest: int, device: torch.device) -> None:
        self._words = torch.zeros(rows, longest // 32 + 2, dtype=torch.int64, device=device)
        self._starts = torch.arange(rows, device=device).unsqueeze(1) * (32 * self._words.shape[1])
        self.ends = self._starts.clone()  # [rows, 1]: where a row's next code goes

    def put(self, codes: Tensor, places: Tensor) -> None:
        """Write codes of up to 33 bits, whose first bit is the lowest, at `places`."""
        self._words.view(-1).scatter_add_(0, places >> 5, codes << (places & 31))

    def streams(self) -> Tensor:
        """Return the streams, zero-padded to uint8 `[rows, bytes of the longest]`."""
        longest = int((self.ends - self._starts).max())
        halves = self._words[:, : longest // 32 + 1].view(torch.int32).unflatten(1, (-1, 2))
        # A copy that keeps the strides of a single column could not be viewed as bytes.
        joined = halves[..., 0].clone(memory_format=torch.contiguous_format)
        joined[:, 1:] |= halves[:, :-1, 1]
        return joined.view(torch.uint8)[:, : (longest + 7) // 8]


class BitReader:
    """A reader of streams `[r, bytes]` at many places at once.

    Up to `beyond` bits past the end of the last stream read as zeros.
    """

    def __init__(self, streams: Tensor, beyond: int) -> None:
        rows, size = streams.shape
        aligned = F.pad(streams, (0, -size % 4))
        # Shape [r, 1].
        self.starts = torch.arange(rows, device=streams.device).unsqueeze(1) * (
            8 * aligned.shape[1]
        )
        self.bytes = size
        self.ends = self.starts + 8 * size
        words = (
            F.pad(aligned.flatten(), (0, 4 * (beyond // 32 + 2))).view(torch.int32).to(torch.int64)
            & 0xFFFFFFFF
        )
        self._words = words[:-1] | (words[1:] << 32)

    def window(self, places: Tensor) -> Tensor:
        """Return the 33 bits from each place on, the first one lowest. Ignore higher bits."""
        return self._words.index_select(0, places >> 5) >> (places & 31)


@dataclass(frozen=True)
class Blocks:
    """Blocks of `size` codes over concatenated tensors, whose lengths are `segments`.

    No block crosses a tensor boundary; the last block of each tensor may be short.
    """

    segments: tuple[int, ...]
    size: int

    @property
    def counts(self) -> list[int]:
        """Return the number of blocks of each tensor."""
        return [-(-n // self.size) for n in self.segments]

    def split(self, codes: Tensor, size: int, fill: int) -> Tensor:
        """Return codes `[w, n]` as `[w, blocks, size]`, each block padded with `fill`.

        `size` is at least the size of the blocks.
        """
        parts = codes.split(self.segments, dim=1)
        if any(n % self.size for n in self.segments):
            parts = tuple(
                F.pad(part, (0, -part.shape[1] % self.size), value=fill) for part in parts
            )
        blocks = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).unflatten(
            1, (-1, self.size)
        )
        return F.pad(blocks, (0, size - self.size), value=fill) if size > self.size else blocks

    def join(self, blocks: Tensor) -> Tensor:
        """Return codes `[w, n]`: the inverse of `split`."""
        parts = blocks[..., : self.size].split(self.counts, dim=1)
        rows = [part.flatten(1)[:, :n] for part, n in zip(parts, self.segments, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def chunks(self, device: torch.device) -> Iterator[slice]:
        """Yield ranges of blocks that fit in a core's cache; on a GPU, one range of all blocks."""
        return block_slices(sum(self.counts), self.size, device, CACHED_VALUES)


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
    given = (
        *(address(codes, torch.uint8, rows * sum(blocks.segments)), rows, *_sizes(blocks)),
        address(numbers, torch.int64, 2 * levels + 1),
        address(distances, torch.int64, blocks.size + 1),
        *(levels, address(lengths, torch.int16, lengths.numel())),
    )
    threads = torch.get_num_threads()
    load_native().elias_encode(*given, None, 0, threads)
    size = (int(lengths.sum(1).max()) + 7) // 8
    streams = torch.zeros(rows, size // 4 + 1, dtype=torch.int32)
    of_streams = address(streams, torch.int32, streams.numel()), streams.shape[1]
    load_native().elias_encode(*given, *of_streams, threads)
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
    rows = len(streams)
    codes = torch.empty(rows, sum(blocks.segments), dtype=torch.uint8)
    tables = [
        (None, 0) if x is None else (address(x, torch.int64, len(x)), len(x) - 1)
        for x in (first, second)
    ]
    load_native().elias_decode(
        *(address(streams, torch.uint8, streams.numel()), *streams.shape),
        address(lengths, torch.int16, rows * sum(blocks.counts)),
        *(*_sizes(blocks), *tables[0], *tables[1], levels),
        *(address(codes, torch.uint8, codes.numel()), torch.get_num_threads()),
    )
    return codes


def _sizes(blocks: Blocks) -> tuple[int, Array[c_int64], int]:
    count = len(blocks.segments)
    return count, (c_int64 * count)(*blocks.segments), blocks.size


def lanes(starts: Tensor) -> Iterator[slice]:
    """Return slices of blocks to decode in lockstep; on a GPU, one slice of all blocks."""
    return block_slices(len(starts), 1, starts.device, _LANES)
