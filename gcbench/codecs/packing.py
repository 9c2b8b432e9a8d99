"""Codes of 1 to 8 bits as bytes, at exactly their width.

Planar: with m = ceil(n / 8), the values j, j + m, ..., j + 7 m share a word of 8 x width bits, so
that packing is eight shifts of contiguous planes rather than a walk over neighbors. Every row
costs `width * m` bytes, or n where a code is one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.codecs.kernels import kernel

_WORDS = {1: torch.uint8, 2: torch.int16, 3: torch.int32, 4: torch.int32}


def width_of(values: int) -> int:
    """Return the bits of a code that takes `values` different values."""
    return (values - 1).bit_length()


def packed_bytes(n: int, width: int) -> int:
    return n if width == 8 else width * ((n + 7) // 8)


def pack(codes: Tensor, width: int) -> Tensor:
    """Return uint8 codes `[w, n]` below 2^width as `[w, packed_bytes(n, width)]` uint8."""
    if width == 8:
        return codes
    planes = F.pad(codes, (0, -codes.shape[1] % 8)).unflatten(1, (8, -1))
    dtype = _WORDS.get(width, torch.int64)
    words = planes[:, 0].to(dtype)
    for k in range(1, 8):
        words |= planes[:, k].to(dtype) << (width * k)
    return words.view(torch.uint8).unflatten(1, (-1, dtype.itemsize))[..., :width].flatten(1)


def unpack(packed: Tensor, n: int, width: int) -> Tensor:
    """Return the codes `[w, n]` uint8 that `pack` took."""
    if width == 8:
        return packed[:, :n]
    if width == 1:  # all planes at once, which is faster only where a word is a byte
        shifts = torch.arange(8, dtype=torch.uint8, device=packed.device).unsqueeze(1)
        return ((packed.unsqueeze(1) >> shifts) & 1).flatten(1)[:, :n]
    dtype = _WORDS.get(width, torch.int64)
    spare = dtype.itemsize - width
    # Views as wider words need aligned memory.
    chunks = packed.clone(memory_format=torch.contiguous_format).unflatten(1, (-1, width))
    words = (F.pad(chunks, (0, spare)) if spare else chunks).flatten(1).view(dtype)
    mask = (1 << width) - 1
    planes = [((words >> (width * k)) & mask).to(torch.uint8) for k in range(8)]
    return torch.stack(planes, dim=1).flatten(1)[:, :n]


def lanes_of(bits: int) -> int:
    """Return how many lanes of `bits` a 64-bit word holds."""
    return 64 // bits


def pack_lanes(codes: Tensor, bits: int) -> Tensor:
    """Return codes `[w, n]` as int64 words whose lanes are wide enough to add the words up.

    Planar like `pack`. The caller chose `bits` such that no sum of all workers reaches 2^bits, so
    that none carries over.
    """
    lanes = lanes_of(bits)
    planes = F.pad(codes, (0, -codes.shape[1] % lanes)).unflatten(1, (lanes, -1))
    return _join_lanes(planes, bits)


def unpack_lanes(words: Tensor, n: int, bits: int) -> Tensor:
    """Return sums of what `pack_lanes` took, `[r, words]` to `[r, n]` int32."""
    return _part_lanes(words, bits).flatten(1)[:, :n]


@kernel
def _join_lanes(planes: Tensor, bits: int) -> Tensor:
    """Return the planes `[w, lanes, words]` side by side in words `[w, words]`."""
    words = planes[:, 0].to(torch.int64)
    for k in range(1, planes.shape[1]):
        words = words | planes[:, k].to(torch.int64) << (bits * k)
    return words


@kernel
def _part_lanes(words: Tensor, bits: int) -> Tensor:
    """Return the planes `[r, lanes, words]`, int32, of words."""
    shifts = torch.arange(lanes_of(bits), dtype=torch.int64, device=words.device) * bits
    planes = (words.unsqueeze(1) >> shifts.unsqueeze(1)) & ((1 << bits) - 1)
    return planes.to(torch.int32)
