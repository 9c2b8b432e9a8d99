"""Top K on a GPU, by hand-written Triton: the largest values of all tensors at once.

A key is a value's magnitude above its place, so that no two of a tensor are equal. The least key
that is sent is found digit by digit: the first one by a histogram of all values, which are then
collected where they reach it, and the others by histograms of what was collected.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from gcbench.core.codecs.launches import launch, pieces_of, pointers

_DIGIT = 11  # bits, of which the first ones are an exponent and three bits of a mantissa
_MAGNITUDE = 31
_CHUNK = 128  # positions of a message that a program reads at once


def find_largest(
    x: Tensor,
    counts: tuple[int, ...],
    tensors: Sequence[Tensor],
    before: Sequence[Tensor] = (),
    alpha: float = 1,
) -> Tensor:
    """Return the places in rows `x` of tensors, ascending, as `largest_of_each` does.

    With `before`, what `tensors` + alpha before are is written to the rows first.
    """
    sizes = tuple([part.shape[1] for part in tensors])
    parts, pieces = x.split(sizes, dim=1), pieces_of(sizes, x.device)
    grid, slots = (pieces.number, len(x)), (len(x), len(sizes))
    low = max((max(sizes) - 1).bit_length(), 1)
    wanted, firsts = _counts(counts, x.device)
    histogram = torch.zeros(*slots, 1 << _DIGIT, dtype=torch.int32, device=x.device)
    found = x.new_empty(*slots, 2, dtype=torch.int32)
    thresholds, missing = x.new_empty(2, *slots, dtype=torch.int64)
    keys = torch.empty(x.shape, dtype=torch.int64, device=x.device)
    chosen = keys.new_empty(len(x), sum(counts))
    some = keys[:, : sum(counts)]  # about as many are collected
    summed = pointers(parts)

    def collect(to: Tensor | None, reads: Tensor, writes: Tensor) -> None:
        launch(
            "collect_keys",
            grid,
            *(summed, keys, found, to, pieces.table, thresholds, firsts, len(sizes)),
            *(x.shape[1], sum(counts)),
            reads=[reads, pieces.table],
            writes=[writes],
            LOW=low,
            BLOCK=pieces.block,
        )

    shift, done = low + _MAGNITUDE - _DIGIT, 0
    while True:
        of_values = (pointers(tensors), pointers(before) if before else None, summed)
        launch(
            "count_digits",
            grid,
            *((None, None, None, keys) if done else (*of_values, None)),
            *(found, pieces.table, thresholds, histogram, len(sizes), x.shape[1]),
            reads=[pieces.table, *([some] if done else [*tensors, *before])],
            writes=[histogram, *(parts if before and not done else ())],
            ALPHA=alpha,
            SHIFT=shift if done else _MAGNITUDE - _DIGIT,
            DONE=done,
            BINS=1 << _DIGIT,
            BLOCK=pieces.block,
        )
        launch(
            "find_digit",
            slots[::-1],
            *(histogram, thresholds, missing, found, wanted),
            reads=[histogram],
            writes=[histogram],
            SHIFT=shift,
            DONE=done,
            BLOCK=1 << _DIGIT,
        )
        if not done:
            collect(None, x, some)
        if not shift:
            break
        shift, done = max(shift - _DIGIT, 0), shift
    collect(chosen, some, chosen)
    return chosen.sort(dim=1).values


def take_out(x: Tensor, places: Tensor) -> Tensor:
    """Return the values of rows at these places, where 0 is left."""
    values = x.new_empty(places.shape)
    launch(
        "take_out",
        (-(-places.shape[1] // 1024), len(x)),
        *(x, places, values, x.stride(0), places.shape[1]),
        reads=[places, values],  # of x as much as there are values
        writes=[values, values],
        BLOCK=1024,
    )
    return values


def average_sparse(
    positions: Tensor, values: Tensor, sizes: tuple[int, ...], counts: tuple[int, ...]
) -> Tensor:
    """Return the mean `[r, n]` of values `[W, r, all]` at ascending int32 positions in tensors."""
    workers, rows, total = values.shape
    out, pieces = values.new_empty(rows, sum(sizes)), pieces_of(sizes, values.device)
    _, firsts = _counts(counts, values.device)
    launch(
        "average_sparse",
        (pieces.number, rows),
        *(positions.contiguous(), values.contiguous(), firsts, pieces.table, out),
        *(workers, total, out.stride(0)),
        reads=[positions, values, out, pieces.table],
        writes=[out],
        STEPS=max(counts).bit_length(),
        WORKERS=1 << (workers - 1).bit_length(),
        CHUNK=_CHUNK,
        BLOCK=pieces.block,
    )
    return out


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _counts(counts: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return how many values of each tensor are sent, and where they begin and all end."""
    firsts = [*accumulate(counts, initial=0)]
    return torch.tensor(counts, device=device), torch.tensor(firsts, device=device)
