"""Randomized Hadamard transforms: rotations after which values of any vector are nearly normal.

A tensor is cut into blocks of `size` = 2^k values. Its last block may be shorter, and is filled up
with zeros to a power of two from 64 on, as fewer values would not be nearly normal. With the
symmetric matrix H of n = 2^k rows, H_ij = (-1)^(number of ones in i and j), and
diagonal matrices D and E of random signs, a block x becomes

    y = H E H D x / n,    x = D H E H y / n

Every value of H D x is a sum of all values of x with random signs. With this alone, a block of two
values other than 0 would have no more than two magnitudes; after H E, too, there are as many as
values (Ailon and Chazelle 2009 start so; a single one is common).

A sign is a bit of a random word, and depends on the place of its value in the model alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_int64
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.native import (
    ADD,
    SUBTRACT,
    WRITE,
    address,
    addresses,
    is_native,
    load_native,
)
from gcbench.core.codecs.noise import Draws, Noise

_LEAST = 64  # the least values of a block
_GROUP, _SIGNS = 256, 16  # a word has a sign for a value in each of up to 16 groups of 256


def padded(segments: Sequence[int], size: int) -> tuple[int, ...]:
    """Return how many values tensors of these sizes have after a rotation."""
    return tuple([n - n % size + _last_block(n % size, size) for n in segments])


def rotate(tensors: Sequence[Tensor], noise: Noise, size: int) -> Tensor:
    """Return tensors `[w, n]` each, rotated in blocks of up to `size` values, in one `[w, ...]`."""
    segments = tuple(x.shape[1] for x in tensors)
    if is_native(tensors[0]):
        rows = [x if x.stride(1) == 1 else x.contiguous() for x in tensors]
        out = tensors[0].new_empty(len(tensors[0]), sum(padded(segments, size)))
        _rotate_native(rows, segments, noise, size, out, back=False)
        return out
    parts: dict[tuple[int, int], Tensor] = {}
    for length, pieces in _layout_of(segments, size, tensors[0].device).items():
        cut = [tensors[t][:, at : at + n] for t, at, n in pieces.places]
        filled = [F.pad(x, (0, -x.shape[1] % length)) for x in cut]
        blocks = torch.cat(filled, dim=1).unflatten(1, (-1, length))
        one, other = (some.at(pieces.starts) for some in (noise, noise.other()))
        turned = _sums(_flip(_sums(_flip(blocks, one)), other)).flatten(1)
        split = turned.split([x.shape[1] for x in filled], dim=1)
        parts |= {place[:2]: x for place, x in zip(pieces.places, split, strict=True)}
    return torch.cat([parts[place] for place in sorted(parts)], dim=1)


def add_rotated_back(
    y: Tensor, noise: Noise, size: int, tensors: Sequence[Tensor], into: int = ADD
) -> None:
    """Add what `rotate` turned into `y` to tensors `[w, n]` each, write or subtract it."""
    segments = tuple(x.shape[1] for x in tensors)
    if is_native(y) and is_native(tensors[0]):
        _rotate_native(tensors, segments, noise, size, y.contiguous(), back=True, into=into)
        return
    parts = y.split(padded(segments, size), dim=1)
    for length, pieces in _layout_of(segments, size, y.device).items():
        cut = [parts[t][:, at : at - -n // length * length] for t, at, n in pieces.places]
        blocks = torch.cat(cut, dim=1).unflatten(1, (-1, length))
        one, other = (some.at(pieces.starts) for some in (noise, noise.other()))
        turned = _flip(_sums(_flip(_sums(_scale(blocks)), other)), one, scaled=False).flatten(1)
        split = turned.split([x.shape[1] for x in cut], dim=1)
        targets = [tensors[t][:, at : at + n] for t, at, n in pieces.places]
        values = [x[:, : to.shape[1]] for x, to in zip(split, targets, strict=True)]
        if into == SUBTRACT:  # 0, where a value is -0, as in a sum that starts at zero
            torch._foreach_sub_(targets, torch._foreach_add(values, 0.0))
            continue
        if into == WRITE:
            torch._foreach_zero_(targets)
        torch._foreach_add_(targets, values)


class _Pieces(NamedTuple):
    """The blocks of one length."""

    places: list[tuple[int, int, int]]  # a tensor, the first of its values, and how many
    starts: Tensor  # [blocks]: the place of each block's first value in the concatenated tensors


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _layout_of(segments: tuple[int, ...], size: int, device: torch.device) -> dict[int, _Pieces]:
    """Return the blocks of tensors by their length."""
    places: dict[int, list[tuple[int, int, int]]] = {}
    for t, n in enumerate(segments):
        full = n - n % size
        for at, count, length in ((0, full, size), (full, n - full, _last_block(n - full, size))):
            if count:
                places.setdefault(length, []).append((t, at, count))
    before = [*accumulate(segments, initial=0)]
    return {
        length: _Pieces(
            of_length,
            torch.cat(
                [torch.arange(before[t] + at, before[t] + at + n, length) for t, at, n in of_length]
            ).to(device),
        )
        for length, of_length in places.items()
    }


def _last_block(n: int, size: int) -> int:
    """Return the length of a block for n < size values; 0 for none."""
    return max(1 << (n - 1).bit_length(), least_block(size)) if n else 0


def least_block(size: int) -> int:
    """Return the least length of a block where most have this size."""
    return min(size, _LEAST)


def _rotate_native(
    tensors: Sequence[Tensor],
    segments: tuple[int, ...],
    noise: Noise,
    size: int,
    y: Tensor,
    back: bool,
    into: int = ADD,
) -> None:
    keys = noise.keys.expand(len(y), -1).contiguous()
    starts = noise.starts(segments).expand(len(y), -1).contiguous()
    load_native().rotate(
        *(len(y), len(tensors), addresses(tensors, len(y), segments)),
        *((c_int64 * len(tensors))(*segments), address(starts, torch.int32, starts.numel())),
        *(address(keys, torch.int32, 2 * len(y)), size),
        *(address(y, torch.float32, len(y) * sum(padded(segments, size))), y.shape[1], back, into),
        torch.get_num_threads(),
    )


def _unit(n: int) -> float:
    """Return 1 / sqrt(n) as a float32, by which values are multiplied before they are added."""
    return float(torch.tensor(1 / math.sqrt(n), dtype=torch.float32))


@kernel
def _scale(x: Tensor) -> Tensor:
    return x * _UNITS[x.shape[-1]]


@kernel
def _flip(x: Tensor, draws: Draws, scaled: bool = True) -> Tensor:
    """Return blocks `[w, blocks, n]` with random signs, and over sqrt(n) if they are `scaled`."""
    n = x.shape[-1]
    words = draws.words(min(n, _GROUP) * -(-n // (_GROUP * _SIGNS)))
    planes = torch.arange(min(_SIGNS, -(-n // _GROUP)), dtype=torch.int32, device=x.device)
    each = words.unflatten(-1, (-1, 1, min(n, _GROUP))) << planes.unsqueeze(-1)
    values = x * _UNITS[n] if scaled else x
    return torch.where(each.flatten(-3) < 0, -values, values)


def _sums(x: Tensor) -> Tensor:
    """Return H x of blocks `[w, blocks, n]`; on a CPU, pairs are added as in native code."""
    n = x.shape[-1]
    if x.is_cpu:
        step = 1
        while step < n:
            low, high = x.unflatten(-1, (-1, 2, step)).unbind(-2)
            x = torch.stack([low + high, low - high], dim=-2).flatten(-3)
            step *= 2
        return x
    side = 1 << (n.bit_length() // 2)
    square = torch.matmul(x.unflatten(-1, (-1, side)), _matrix(side, x.device))
    return torch.matmul(_matrix(n // side, x.device), square).flatten(-2)


@lru_cache(maxsize=64)
def _matrix(n: int, device: torch.device) -> Tensor:
    """Return the matrix H of n rows."""
    return _sums(torch.eye(n, dtype=torch.float32).unsqueeze(0))[0].to(device)


_UNITS = {1 << k: _unit(1 << k) for k in range(20)}
