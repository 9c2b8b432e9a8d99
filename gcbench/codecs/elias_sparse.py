"""The sparse Elias code: the distances, signs and magnitudes of the values that are not zero."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gcbench.codecs.bitstream import BitReader, BitWriter
from gcbench.codecs.blocks import Blocks
from gcbench.codecs.elias import (
    as_numbers,
    borders,
    decode_native,
    encode_native,
    first_codes,
    lanes,
    omega,
    sign,
)
from gcbench.codecs.native import is_native


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
