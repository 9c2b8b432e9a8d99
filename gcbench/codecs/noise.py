"""Randomness as a function of (seed, site, step, worker, element), not a stream.

Two runs with the same arguments draw the same numbers whatever came before: a resumed run continues to the bit, and a
virtual worker rounds as the real one does. Keys come from `gcbench.seeds.mix`; `uniform` runs the `lowbias32` hash
(Wellons, 2018) twice with two independent 32-bit keys, since `hash(index ^ key)` alone would give every worker a permutation
of one and the same sequence.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def site_number(site: str) -> int:
    """A name as a number that is the same in every process, unlike `hash`."""
    return zlib.crc32(site.encode())


def keys(values: Sequence[int], device: torch.device) -> Tensor:
    """64-bit values, one a worker, as `[w, 2]` int32 keys."""
    words = torch.tensor([v - (1 << 64) if v >> 63 else v for v in values], dtype=torch.int64)
    return words.view(torch.int32).view(-1, 2).to(device)


@dataclass(frozen=True)
class Noise:
    """Uniform draws in [0, 1) for the elements `index` (`[n]` int32) of every worker, made where they are used.

    With `index` `[p, n]` every worker has p parts of its own, and w p rows come out, worker by worker.
    """

    keys: Tensor
    index: Tensor

    def uniform(self, start: int = 0, stop: int | None = None) -> Tensor:
        """`[w, stop - start]` float32 multiples of 2^-24."""
        part = self.index[..., start:stop]
        return uniform(self.keys, part.flatten()).view(-1, part.shape[-1])

    def in_parts(self, parts: int, size: int) -> Noise:
        """The same draws for rows that are cut into `parts` of `size`; what is behind their end draws anew."""
        beyond = parts * size - self.index.shape[0]
        behind = torch.arange(-beyond, 0, dtype=torch.int32, device=self.index.device)
        return Noise(self.keys, torch.cat([self.index, behind]).view(parts, size))

    def normal(self) -> Tensor:
        """`[w, n]` standard normal draws (Box-Muller)."""
        radius = torch.sqrt(-2 * torch.log1p(-self.uniform()))
        angle = uniform(self.keys.flip(1) ^ 0x5BD1E995, self.index)
        return radius * torch.cos(2 * torch.pi * angle)


def uniform(keys: Tensor, index: Tensor) -> Tensor:
    """`[w, 2]` keys and `[n]` indices to `[w, n]` uniform draws in [0, 1)."""
    x = index.unsqueeze(0) ^ keys[:, :1]
    x = _hash_(_hash_(x).add_(keys[:, 1:]))
    return x.bitwise_right_shift_(8).bitwise_and_(0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def _hash_(x: Tensor) -> Tensor:
    """`lowbias32` in place; int32 products wrap, and the masks make arithmetic shifts logical."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= 0x7FEB352D
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= 0x846CA68B - (1 << 32)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x
