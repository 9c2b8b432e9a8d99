"""Randomness as a function of (seed, site, step, worker, element), not a stream.

The same arguments give the same numbers whatever was drawn before: a resumed run continues bit for
bit, and a virtual worker rounds as the real one does. Keys come from `gcbench.seeds.mix`.
`random_words` is a two-round hash (hash-prospector's 16 21f0aaad 15 735a2d97 15) of the element's
index with two independent 32-bit keys, one before and one inside the rounds: `hash(index ^ key)`
alone would give every worker a permutation of the same sequence. For one key, the draws are as
uniform as Philox's; a third round would change nothing that is measured, and cost 4 to 10 % of an
encode.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.codecs.kernels import block_slices


def site_number(site: str) -> int:
    """Return a name as a number that is the same in every process, unlike `hash`."""
    return zlib.crc32(site.encode())


def keys(values: Sequence[int], device: torch.device) -> Tensor:
    """Return 64-bit values, one per worker, as int32 keys `[w, 2]`."""
    words = torch.tensor([v - (1 << 64) if v >> 63 else v for v in values], dtype=torch.int64)
    return words.view(torch.int32).view(-1, 2).to(device)


@dataclass(frozen=True)
class Noise:
    """Random draws for rows of elements, computed where they are used.

    Row i has the key `keys[i]`. Its elements are numbered by `index`, int32 `[n]` or `[rows, n]`.
    """

    keys: Tensor
    index: Tensor

    def uniform(self) -> Tensor:
        """Return uniform draws `[rows, n]`, float32 multiples of 2^-24 in [0, 1)."""
        parts = block_slices(self.index.shape[-1], len(self.keys), self.index.device)
        return torch.cat([unit_interval(self.of(part).words()) for part in parts], dim=1)

    def at(self, positions: Tensor) -> Draws:
        """Return the draws of the elements at `positions`, or of runs that begin there."""
        first = _first if self.index.dim() == 1 else _first.__wrapped__
        return Draws(first(self.index, positions), self.keys)

    def of(self, columns: slice = slice(None)) -> Draws:
        """Return the draws of the elements in `columns`, in the form that kernels take."""
        return Draws(self.index.view(-1, self.index.shape[-1])[:, columns], self.keys)

    def in_parts(self, parts: int) -> Noise:
        """Return the same draws for rows that are each split into `parts` equal ones."""
        index = self.index.view(parts, -1).repeat(self.keys.shape[0], 1)
        return Noise(self.keys.repeat_interleave(parts, dim=0), index)

    def normal(self) -> Tensor:
        """Return `[rows, n]` standard normal draws (Box-Muller)."""
        radius = torch.sqrt(-2 * torch.log1p(-self.uniform()))
        angle = Noise(self.keys.flip(1) ^ 0x5BD1E995, self.index).uniform()
        return radius * torch.cos(2 * torch.pi * angle)


@lru_cache(maxsize=8)
def _first(index: Tensor, positions: Tensor) -> Tensor:
    """Return the elements at `positions`, `[1 or rows, ...]`.

    They are cached, as the same two tensors are used in every step.
    """
    rows = index.view(-1, index.shape[-1])
    return rows.index_select(1, positions.flatten()).view(len(rows), *positions.shape)


class Draws(NamedTuple):
    first: Tensor  # [1 or rows, ...]: the elements, or the first ones of runs
    keys: Tensor  # [rows, 2]

    def of(self, part: slice) -> Draws:
        """Return the draws of a part of the second dimension."""
        return Draws(self.first[:, part], self.keys)

    def words(self, run: int = 0) -> Tensor:
        """Return random words `[rows, ...]`, or `[rows, ..., run]` for runs of `run` elements."""
        index = self.first
        if run:
            index = index.unsqueeze(-1) + torch.arange(run, dtype=torch.int32, device=index.device)
        key, inner_key = (k.view(-1, *[1] * (index.dim() - 1)) for k in self.keys.unbind(1))
        return random_words(index, key, inner_key)


def random_words(index: Tensor, key: Tensor, inner_key: Tensor) -> Tensor:
    """Return int32 words whose high bits are random.

    Products wrap around, and the masks make arithmetic shifts logical. The hash's last step, after
    its last product, is left out: it would only improve the lowest bits.
    """
    x = index ^ key
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x21F0AAAD + inner_key
    x = x ^ ((x >> 15) & 0x1FFFF)
    return x * 0x735A2D97


def unit_interval(words: Tensor) -> Tensor:
    """Return the high 24 bits of `random_words` as float32 in [0, 1)."""
    return ((words >> 8) & 0xFFFFFF).to(torch.float32) * 2.0**-24
