"""Codes of 1 to 8 bits packed into bytes, at exactly their width.

The layout is planar: with m = ceil(n / 8), the values j, j + m, ..., j + 7 m share a word of
8 x width bits, so that packing is eight shifts of contiguous planes rather than a walk over
neighbors. A row takes `width * m` bytes, or n bytes if a code is a byte.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.codecs.kernels import kernel

_WORDS = {1: torch.uint8, 2: torch.int16, 3: torch.int32, 4: torch.int32}


def width_of(values: int) -> int:
    """Return the number of bits in a code of `values` different values."""
    return (values - 1).bit_length()


def packed_bytes(n: int, width: int) -> int:
    return n if width == 8 else width * ((n + 7) // 8)


def pack(codes: Tensor, width: int) -> Tensor:
    """Return uint8 codes `[w, n]` below 2^width packed into uint8 `[w, packed_bytes(n, width)]`."""
    if width == 8:
        return codes
    planes = F.pad(codes, (0, -codes.shape[1] % 8)).unflatten(1, (8, -1))
    dtype = _WORDS.get(width, torch.int64)
    words = _join_planes(planes, width, dtype)
    return words.view(torch.uint8).unflatten(1, (-1, dtype.itemsize))[..., :width].flatten(1)


def unpack(packed: Tensor, n: int, width: int) -> Tensor:
    """Return uint8 codes `[w, n]`: the inverse of `pack`."""
    if width == 8:
        return packed[:, :n]
    dtype = _WORDS.get(width, torch.int64)
    spare = dtype.itemsize - width
    # A view as wider words needs aligned memory.
    chunks = packed.clone(memory_format=torch.contiguous_format).unflatten(1, (-1, width))
    words = (F.pad(chunks, (0, spare)) if spare else chunks).flatten(1).view(dtype)
    return _part_planes(words, width).flatten(1)[:, :n]


@kernel
def _join_planes(planes: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return codes `[w, 8, words]` of `width` bits side by side in words `[w, words]`."""
    words = planes[:, 0].to(dtype)
    for k in range(1, 8):
        words = words | planes[:, k].to(dtype) << (width * k)
    return words


@kernel
def _part_planes(words: Tensor, width: int) -> Tensor:
    """Return uint8 codes `[w, 8, words]`: the inverse of `_join_planes`."""
    mask = (1 << width) - 1
    planes = [((words >> (width * k)) & mask).to(torch.uint8) for k in range(8)]
    return torch.stack(planes, dim=1)


def lanes_of(bits: int) -> int:
    """Return how many lanes of `bits` a 64-bit word holds."""
    return 64 // bits


def pack_lanes(codes: Tensor, bits: int) -> Tensor:
    """Return codes `[w, n]` packed into int64 words whose lanes have room for sums of the words.

    The layout is planar, as in `pack`. The caller chooses `bits` so that no sum over all workers
    reaches 2^bits; then no lane carries over into the next.
    """
    lanes = lanes_of(bits)
    planes = F.pad(codes, (0, -codes.shape[1] % lanes)).unflatten(1, (lanes, -1))
    return _join_lanes(planes, bits)


def unpack_lanes(words: Tensor, n: int, bits: int) -> Tensor:
    """Return the codes, or sums, in words of `pack_lanes`, `[r, words] -> [r, n]` int32."""
    return _part_lanes(words, bits).flatten(1)[:, :n]


@kernel
def _join_lanes(planes: Tensor, bits: int) -> Tensor:
    """Return planes `[w, lanes, words]` packed side by side into words `[w, words]`."""
    words = planes[:, 0].to(torch.int64)
    for k in range(1, planes.shape[1]):
        words = words | planes[:, k].to(torch.int64) << (bits * k)
    return words


@kernel
def _part_lanes(words: Tensor, bits: int) -> Tensor:
    """Return int32 planes `[r, lanes, words]`: the inverse of `_join_lanes`."""
    shifts = torch.arange(lanes_of(bits), dtype=torch.int64, device=words.device) * bits
    planes = (words.unsqueeze(1) >> shifts.unsqueeze(1)) & ((1 << bits) - 1)
    return planes.to(torch.int32)
