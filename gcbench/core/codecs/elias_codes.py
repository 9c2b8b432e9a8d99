"""Elias's dense code, of every value, and the sparse one, of the values that are not zero.

The dense code has magnitudes and signs, several at a time by tables; the sparse one distances, too.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gcbench.core.codecs.elias import (
    BitReader,
    BitWriter,
    Blocks,
    as_number,
    as_numbers,
    borders,
    decode_native,
    encode_native,
    first_codes,
    lanes,
    omega,
    sign,
)
from gcbench.core.codecs.kernels import CACHED_VALUES, block_slices
from gcbench.core.codecs.native import is_native

_LOOK = 15  # bits looked up at once; at least the length of the longest code
_RUN = 7  # how many codes, of one byte each, fit in an entry of the decoder's table


def dense_code(code: int, levels: int) -> str:
    k = abs(code - levels)
    return omega(k + 1) + (sign(code, levels) if k else "")


def encode_dense(codes: Tensor, blocks: Blocks, levels: int) -> tuple[Tensor, Tensor]:
    """Return the bit streams of uint8 codes `[w, n]`, and the length in bits of every block.

    The streams are uint8 `[w, bytes of the longest]`, the lengths int16 `[w, blocks]`.
    """
    if is_native(codes, torch.uint8):
        return encode_native(codes, blocks, _numbers(levels), None, levels)
    table = _join_table(levels, codes.device)
    # The fill value stands for a code of no bits.
    padded = blocks.split(codes, blocks.size + -blocks.size % 8, fill=2 * levels + 1)
    writer = BitWriter(codes.shape[0], codes.shape[1] * len(dense_code(0, levels)), codes.device)
    lengths = []
    for part in blocks.chunks(codes.device):
        entries = table.index_select(0, _join(padded[:, part], _width(levels))).view(
            codes.shape[0], -1
        )
        bits = entries >> 32
        places = bits.cumsum(1).add_(writer.ends)
        writer.ends = places[:, -1:].clone()
        writer.put((entries & 0xFFFFFFFF).flatten(), places.sub_(bits).flatten())
        lengths.append(bits.view(*padded[:, part].shape[:2], -1).sum(-1))
    return writer.streams(), torch.cat(lengths, dim=1).to(torch.int16)


@lru_cache(maxsize=8)
def _numbers(levels: int) -> Tensor:
    codes = [dense_code(code, levels) for code in range(2 * levels + 1)]
    return as_numbers(codes, torch.device("cpu"))


def _width(levels: int) -> int:
    """Return the bits per code in a 16-bit index: a power of two, with room for one extra code."""
    if levels == 1:
        return 2
    return 4 if levels <= 7 else 8


def _join(codes: Tensor, width: int) -> Tensor:
    """Return 16-bit indices that join the lowest `width` bits of 16 / width neighboring codes."""
    words = codes.contiguous().view(torch.int64).flatten()  # eight codes per word
    if width < 8:
        words = (words | (words >> 4)) & 0x00FF00FF00FF00FF
        words = (words | (words >> 8)) & 0x0000FFFF0000FFFF
        words = words | (words >> 16)
    if width < 4:
        words = words & 0x33333333
        words = (words | (words >> 2)) & 0x0F0F0F0F
        words = (words | (words >> 4)) & 0x00FF00FF
        words = words | (words >> 8)
    return (
        words.view(torch.int16)
        .view(-1, 4)[:, : width // 2]
        .to(torch.int32)
        .bitwise_and_(0xFFFF)
        .flatten()
    )


@lru_cache(maxsize=8)
def _join_table(levels: int, device: torch.device) -> Tensor:
    """Return the table from an index of `_join` to the concatenated Elias codes of its values.

    The low 32 bits of an entry hold the codes, the high 32 bits their total length in bits.
    """
    width = _width(levels)
    codes = [dense_code(code, levels) for code in range(2 * levels + 1)]
    spare = [0] * (2**width - len(codes))
    numbers = torch.tensor(list(map(as_number, codes)) + spare)
    lengths = torch.tensor(list(map(len, codes)) + spare)
    index = torch.arange(1 << 16)
    joint, bits = torch.zeros_like(index), torch.zeros_like(index)
    for i in range(0, 16, width):
        code = (index >> i) & (2**width - 1)
        joint |= numbers[code] << bits
        bits += lengths[code]
    return (joint | (bits << 32)).to(device)


def decode_dense(streams: Tensor, lengths: Tensor, blocks: Blocks, levels: int) -> Tensor:
    """Return uint8 codes `[r, n]`: the inverse of `encode_dense`.

    Raises ValueError if the lengths do not fit the streams.
    """
    table, mask = _run_table(levels, streams.device), (1 << _LOOK) - 1
    if is_native(streams, torch.uint8):
        return decode_native(streams, lengths, blocks, table, None, levels)
    reader = BitReader(streams, beyond=_LOOK * (blocks.size + 2))
    starts, ends = borders(reader, lengths)
    words = torch.zeros(
        starts.shape[0], blocks.size // 8 + 2, dtype=torch.int64, device=streams.device
    )
    for part in lanes(starts):
        place, runs = starts[part].clone(), []
        for step in range((blocks.size + 1) // 2):
            if step % 8 == 0 and bool((place >= ends[part]).all()):
                break
            window = reader.window(place)
            runs.append(table.index_select(0, window & mask))
            used = runs[-1] >> 59
            runs.append(table.index_select(0, (window >> used) & mask))
            place += used
            place += runs[-1] >> 59
        _scatter_codes(torch.stack(runs, dim=1), words[part], blocks.size)
    return blocks.join(words.view(torch.uint8).view(*lengths.shape, -1))


def _scatter_codes(runs: Tensor, words: Tensor, size: int) -> None:
    """Write the codes of `runs` `[blocks, entries]` to `words` `[blocks, words]`, one per byte.

    Bytes after the first `size` of a block are undefined.
    """
    for some in block_slices(len(runs), runs.shape[1], runs.device, CACHED_VALUES):
        part, out = runs[some], words[some].view(-1)
        counts = (part >> 56) & 7
        places = counts.cumsum(1).sub_(counts).clamp_max_(size)
        rows = torch.arange(part.shape[0], device=words.device).unsqueeze(1) * words.shape[1]
        target, shift = (places >> 3).add_(rows).flatten(), ((places & 7) << 3).flatten()
        codes = (part & ((1 << 56) - 1)).flatten()
        out.scatter_add_(0, target, codes << shift)
        out.scatter_add_(0, target + 1, (codes >> 8) >> (56 - shift))


@lru_cache(maxsize=8)
def _run_table(levels: int, device: torch.device) -> Tensor:
    """Return the table from the next 15 bits to the complete codes in them.

    The low 56 bits of an entry hold up to 7 codes, one per byte. The next 3 bits hold the number of
    codes, and the 4 bits above those how many bits they take.
    """
    first, lengths = first_codes([dense_code(code, levels) for code in range(2 * levels + 1)])
    first, lengths = (table.repeat((1 << _LOOK) // table.shape[0]) for table in (first, lengths))
    index = torch.arange(1 << _LOOK)
    codes, counts, used = torch.zeros_like(index), torch.zeros_like(index), torch.zeros_like(index)
    for _ in range(_RUN):
        rest = index >> used
        whole = (lengths[rest] > 0) & (used + lengths[rest] <= _LOOK)
        codes |= torch.where(whole, first[rest] << (8 * counts), 0)
        used += torch.where(whole, lengths[rest], 0)
        counts += whole
    return (codes | (counts << 56) | (used << 59)).to(device)


def sparse_code(code: int, levels: int) -> str:
    """Return the part of the code that follows the distance."""
    return sign(code, levels) + omega(abs(code - levels))


def encode_sparse(codes: Tensor, blocks: Blocks, levels: int) -> tuple[Tensor, Tensor]:
    """Return the bit streams of uint8 codes `[w, n]`, and the length in bits of every block.

    The streams are uint8 `[w, bytes of the longest]`, the lengths int16 `[w, blocks]`.
    """
    distances = _distance_codes(blocks.size, codes.device)
    values = _value_codes(levels, codes.device)
    if is_native(codes, torch.uint8):
        return encode_native(codes, blocks, values, distances, levels)
    padded = blocks.split(codes, blocks.size, fill=levels)
    writer = BitWriter(
        codes.shape[0], codes.shape[1] * (1 + len(sparse_code(0, levels))), codes.device
    )
    lengths = []
    for part in blocks.chunks(codes.device):
        chunk = padded[:, part].flatten()
        at = (chunk != levels).nonzero().squeeze(1)
        block = at // blocks.size
        distance = distances.index_select(0, at - _before(at, block, blocks.size))
        value = values.index_select(0, chunk.index_select(0, at).to(torch.int32))
        bits = (distance >> 32) + (value >> 32)

        of_block = torch.zeros(
            codes.shape[0], part.stop - part.start, dtype=torch.int64, device=codes.device
        )
        of_block.view(-1).scatter_add_(0, block, bits)
        ends = of_block.cumsum(1) + writer.ends
        writer.ends = ends[:, -1:]
        from_chunk = (
            ends - of_block.view(-1).cumsum(0).view_as(ends)
        ).flatten()  # each row continues where the last chunk ended
        places = bits.cumsum(0).sub_(bits).add_(from_chunk.index_select(0, block))
        writer.put((distance & 0xFFFFFFFF) | ((value & 0xFFFFFFFF) << (distance >> 32)), places)
        lengths.append(of_block)
    return writer.streams(), torch.cat(lengths, dim=1).to(torch.int16)


def _before(at: Tensor, block: Tensor, size: int) -> Tensor:
    """Return each position's predecessor in its block, or the position just before the block."""
    start = block * size - 1
    return torch.maximum(torch.cat([start[:1], at[:-1]]), start)


@lru_cache(maxsize=8)
def _distance_codes(size: int, device: torch.device) -> Tensor:
    return as_numbers(["", *map(omega, range(1, size + 1))], device)


@lru_cache(maxsize=8)
def _value_codes(levels: int, device: torch.device) -> Tensor:
    return as_numbers(
        ["" if code == levels else sparse_code(code, levels) for code in range(2 * levels + 1)],
        device,
    )


def decode_sparse(streams: Tensor, lengths: Tensor, blocks: Blocks, levels: int) -> Tensor:
    """Return uint8 codes `[r, n]`: the inverse of `encode_sparse`.

    Raises ValueError if the lengths do not fit the streams.
    """
    distances, values = _distances(blocks.size, streams.device), _values(levels, streams.device)
    if is_native(streams, torch.uint8):
        return decode_native(streams, lengths, blocks, distances, values, levels)
    reader = BitReader(streams, beyond=33 * blocks.size)
    starts, ends = borders(reader, lengths)
    codes = torch.full(
        (starts.shape[0], blocks.size + 1), levels, dtype=torch.uint8, device=streams.device
    )
    for part in lanes(starts):
        place, end, out = starts[part].clone(), ends[part], codes[part]
        at = torch.full_like(place, -1)
        for step in range(blocks.size):
            if step % 8 == 0 and bool((place >= end).all()):
                break
            window = reader.window(place)
            distance = distances.index_select(0, window & (distances.shape[0] - 1))
            used = distance >> 16
            value = values.index_select(0, (window >> used) & (values.shape[0] - 1))
            # Blocks that have ended write to the spare last column.
            at = torch.where(place < end, at + (distance & 0xFFFF), blocks.size).clamp_max_(
                blocks.size
            )
            out.scatter_(1, at.unsqueeze(1), value.to(torch.uint8).unsqueeze(1))
            place += used
            place += value >> 16
    return blocks.join(codes.view(*lengths.shape, -1))


@lru_cache(maxsize=8)
def _distances(size: int, device: torch.device) -> Tensor:
    """Return the table from the next bits to the distance that they begin with.

    The number of bits that it takes is above the low 16 bits.
    """
    index, lengths = first_codes([omega(k) for k in range(1, size + 1)])
    return ((index + 1) | (lengths << 16)).to(device)


@lru_cache(maxsize=8)
def _values(levels: int, device: torch.device) -> Tensor:
    """Return the table from the next bits to the code of the value that they begin with.

    The number of bits that it takes is above the low 16 bits.
    """
    others = [code for code in range(2 * levels + 1) if code != levels]
    index, lengths = first_codes([sparse_code(code, levels) for code in others])
    return (torch.tensor(others)[index] | (lengths << 16)).to(device)
