"""Randomness as a function of (seed, site, step, worker, element), not a stream.

The same arguments give the same numbers whatever was drawn before: a resumed run continues bit for
bit, and a virtual worker rounds as the real one does. Keys are `mix` of the others, by SplitMix64
(Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
`random_words` is a two-round hash (hash-prospector's 16 21f0aaad 15 735a2d97 15) of the element's
index with two independent 32-bit keys, one before and one inside the rounds: `hash(index ^ key)`
alone would give every worker a permutation of the same sequence. For one key, the draws are as
uniform as Philox's; a third round would change nothing that is measured, and cost 4 to 10 % of an
encode.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcbench.core.codecs.kernels import block_slices, kernel

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix(*values: int) -> int:
    """Return a 64-bit seed for a tuple such as (seed, epoch).

    Unlike with sums of the values, the seeds of similar tuples are unrelated.
    """
    return absorb(len(values), values)


def absorb(state: int, values: Iterable[int]) -> int:
    """Return the state after more values; that of `mix` begins as their number."""
    for value in values:
        state = ((state ^ (value & _MASK)) + _STEP) & _MASK
        for shift, factor in zip((30, 27), _FACTORS, strict=True):
            state = ((state ^ (state >> shift)) * factor) & _MASK
        state ^= state >> 31
    return state


def signed(value: int) -> int:
    """Return the signed 64-bit number with the same bits."""
    return value - (1 << 64) if value >> 63 else value


def site_number(site: str) -> int:
    """Return a name as a number that is the same in every process, unlike `hash`."""
    return zlib.crc32(site.encode())


def keys(seed: int, site: str, number: int, workers: range | None, device: torch.device) -> Tensor:
    """Return int32 keys `[w, 2]`: the words of mix(seed, site, number, 1 + worker) per worker.

    Without `workers` it is one key, of mix(seed, site, number).
    """
    if device.type not in ("cpu", "meta"):
        return count_keys(seed, site, number, workers, device)
    base = (seed, site_number(site), number)
    mixed = [mix(*base)] if workers is None else [mix(*base, 1 + worker) for worker in workers]
    words = np.array(mixed, dtype=np.uint64).view(np.int32).reshape(-1, 2)
    return torch.from_numpy(words).to(device)


def count_keys(
    seed: int, site: str, number: int, workers: range | None, device: torch.device
) -> Tensor:
    """Return the same keys, whose number is counted and mixed on the device.

    So no step copies to it, and one that is captured in a CUDA graph draws anew in each replay.
    """
    stream = _stream(seed, site, workers, device)
    return _mix(*stream, count(seed, number, device))


def count(seed: int, number: int, device: torch.device) -> Tensor:
    """Return the number of an exchange as int64 `[1]`, counted on the device."""
    return _counter(seed, device, threading.get_ident()).at(number)


class _Counter:
    """The number of an exchange, which the host only sets where it does not follow the last."""

    def __init__(self, device: torch.device) -> None:
        self._held, self._value = 0, torch.zeros(1, dtype=torch.int64, device=device)

    def at(self, number: int) -> Tensor:
        if number == self._held + 1:
            self._value.add_(1)
        elif number != self._held:
            self._value.fill_(number)
        self._held = number
        return self._value


@lru_cache(maxsize=64)
def _counter(_seed: int, device: torch.device, _thread: int) -> _Counter:
    # A thread has a stream of its own, on which it counts and draws in order.
    return _Counter(device)


@lru_cache(maxsize=64)
def _stream(
    seed: int, site: str, workers: range | None, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Return what is mixed before a step's number, `[1]`, and after it, `[w]`."""
    values = (seed, site_number(site))
    state = torch.full((1,), signed(absorb(3 + (workers is not None), values)), device=device)
    return state, None if workers is None else torch.tensor([*workers], device=device) + 1


@kernel
def _mix(state: Tensor, workers: Tensor | None, number: Tensor) -> Tensor:
    """Return `mix`, whose 64-bit numbers are int64 ones that wrap around."""
    state = _splitmix64(state ^ number)
    if workers is not None:
        state = _splitmix64(state ^ workers)
    return torch.stack([state.to(torch.int32), (state >> 32).to(torch.int32)], dim=1)


def _splitmix64(state: Tensor) -> Tensor:
    state = state + signed(_STEP)
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        state = (state ^ _shift(state, shift)) * signed(factor)
    return state ^ _shift(state, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << 64 - bits) - 1)  # logical, as of an unsigned number


Runs = tuple[tuple[int, int], ...]
"""The first element and the number of elements of each tensor, or of the whole of several."""


@dataclass(frozen=True)
class Noise:
    """Random draws for rows of elements, computed where they are used.

    Row i has the key `keys[i]`, and the elements of `runs`, moved on by `shifts[i]`.
    """

    keys: Tensor
    runs: Runs
    shifts: tuple[int, ...] = ()  # empty: all 0

    def uniform(self) -> Tensor:
        """Return uniform draws `[rows, n]`, float32 multiples of 2^-24 in [0, 1)."""
        n, device = sum(length for _, length in self.runs), self.keys.device
        out = torch.empty(len(self.keys), n, dtype=torch.float32, device=device)
        for part in block_slices(n, len(self.keys), device):
            out[:, part] = unit_interval(self.of(part).words(part.stop - part.start))
        return out

    def at(self, positions: Tensor) -> Draws:
        """Return the draws of the elements at `positions`, or of runs that begin there."""
        return self._draws(_elements(self.runs, positions))

    def of(self, columns: slice = slice(None)) -> Draws:
        """Return the draws of the elements from the first of `columns` on, as kernels take them."""
        device = self.keys.device
        if len(self.runs) == 1:
            return self.at(_place(columns.start or 0, device))
        ends, shifts = _table(self.runs, device)
        return Draws(_place(columns.start or 0, device).unsqueeze(0), self.keys, ends, shifts)

    def by_segment(self, segments: tuple[int, ...]) -> Draws:
        """Return draws whose `first`, `[1 or rows, segments]`, is what places in each lack."""
        return self._draws(_segment_shifts(self.runs, segments, self.keys.device))

    def starts(self, segments: tuple[int, ...]) -> Tensor:
        """Return the first elements `[rows, segments]`, int32: the runs divided anew."""
        return _starts(self.runs, self.shifts or (0,) * len(self.keys), segments)

    def in_parts(self, parts: int, some: range | None = None) -> Noise:
        """Return the same draws for rows that are each split into `parts` equal ones, or `some`."""
        ((start, n),) = self.runs
        size, rows, some = n // parts, len(self.keys), some or range(parts)
        shifts = tuple(size * part for _ in range(rows) for part in some)
        return Noise(self.keys.repeat_interleave(len(some), dim=0), ((start, size),), shifts)

    def rows(self, some: slice) -> Noise:
        """Return the draws of some rows."""
        return Noise(self.keys[some], self.runs, self.shifts[some])

    def other(self) -> Noise:
        """Return independent draws for the same elements."""
        return Noise(self.keys.flip(1) ^ 0x5BD1E995, self.runs, self.shifts)

    def normal(self) -> Tensor:
        """Return `[rows, n]` standard normal draws (Box-Muller)."""
        radius = torch.sqrt(-2 * torch.log1p(-self.uniform()))
        angle = self.other().uniform()
        return radius * torch.cos(2 * torch.pi * angle)

    def _draws(self, elements: Tensor) -> Draws:
        first = elements.unsqueeze(0)
        if self.shifts:
            shifts = _shift_rows(self.shifts, first.device)
            first = first + shifts.view(-1, *[1] * elements.dim())
        return Draws(first, self.keys)


def join_runs(runs: Iterable[tuple[int, int]]) -> Runs:
    """Return runs of elements with those joined that follow one another."""
    joined: list[tuple[int, int]] = []
    for start, length in runs:
        if joined and sum(joined[-1]) == start:
            start, length = joined[-1][0], joined.pop()[1] + length
        joined.append((start, length))
    return tuple(joined)


def _shifts(runs: Runs, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what has to be added to places in the concatenated runs to get elements."""
    ends = [*accumulate(length for _, length in runs)]
    shift = np.array([start + n - end for (start, n), end in zip(runs, ends, strict=True)])
    shifts: NDArray[np.int64] = shift[
        np.searchsorted(ends, places, side="right").clip(max=len(ends) - 1)
    ]
    return shifts


@lru_cache(maxsize=8)
def _elements(runs: Runs, positions: Tensor) -> Tensor:
    """Return the elements at `positions`, int32, which wrap around.

    They are cached, as the same positions are used in every step: those of rows, and of the few
    values outside groups.
    """
    if len(runs) == 1:
        return (positions + runs[0][0]).to(torch.int32)
    ends, shifts = _table(runs, positions.device)
    return (positions + shifts[torch.bucketize(positions, ends, right=True)]).to(torch.int32)


@lru_cache(maxsize=64)
def _place(start: int, device: torch.device) -> Tensor:
    return torch.tensor(start, device=device)


@lru_cache(maxsize=64)
def _table(runs: Runs, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where runs end, and what has to be added to places in them to get elements."""
    ends = torch.tensor([*accumulate(n for _, n in runs)], device=device)
    return ends, torch.tensor([a + n for a, n in runs], device=device) - ends


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _starts(runs: Runs, shifts: tuple[int, ...], segments: tuple[int, ...]) -> Tensor:
    places = np.array([0, *accumulate(segments)][:-1], dtype=np.int64)
    first = places + _shifts(runs, places) + np.array(shifts)[:, None]
    return torch.from_numpy(first).to(torch.int32)  # which wraps around


@lru_cache(maxsize=64)
def _segment_shifts(runs: Runs, segments: tuple[int, ...], device: torch.device) -> Tensor:
    places = np.array([0, *accumulate(segments)][:-1], dtype=np.int64)
    return torch.tensor(_shifts(runs, places), dtype=torch.int32, device=device)


@lru_cache(maxsize=8)
def _shift_rows(shifts: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(shifts, dtype=torch.int32, device=device)


class Draws(NamedTuple):
    first: Tensor  # [1 or rows, ...]: the elements, or the first ones of runs
    keys: Tensor  # [rows, 2]
    # Where these are set, `first` is a place in runs: where each ends, and what has to be added to
    # places in it to get elements.
    ends: Tensor | None = None
    shifts: Tensor | None = None

    def of(self, part: slice) -> Draws:
        """Return the draws of a part of the second dimension."""
        return Draws(self.first[:, part], self.keys)

    def words(self, run: int = 0) -> Tensor:
        """Return random words `[rows, ...]`, or `[rows, ..., run]` for runs of `run` elements."""
        index = self.first
        if run:
            places = torch.arange(run, dtype=torch.int32, device=index.device)
            index = index.unsqueeze(-1) + places
        if self.ends is not None and self.shifts is not None:
            shift = self.shifts[torch.bucketize(index, self.ends, right=True)]
            index = (index + shift).to(torch.int32)
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
