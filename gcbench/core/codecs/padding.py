"""Buckets of different lengths as rows of a matrix, with zeros behind them: one call for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.core.codecs.kernels import kernel

Piece = tuple[int, int, int]
"""Consecutive values: their tensor, the place of the first in it, and how many there are."""

_PIECES = 3  # the most that a bucket lies in


class Padded(NamedTuple):
    """The places of shorter buckets, by the length that they are padded to.

    Of each bucket, `[2 _PIECES, buckets]` has the ends of its pieces, after what to add to a place
    in the bucket to get that in the copy of all values.
    """

    by_size: list[tuple[int, Tensor]]
    order: Tensor | None  # what puts the full buckets and then these in order; None: they are


def pad_places(
    shorts: Sequence[Piece],
    copied: Sequence[Piece],
    size: int | None,
    before: int,
    device: torch.device,
) -> Padded:
    """Return how to pad buckets to `size`, or to powers of two; `before` full buckets come first.

    `copied` are the pieces of the copy, in its order.
    """
    of_tensor: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    starts = accumulate((length for *_, length in copied), initial=0)
    for (tensor, offset, length), start in zip(copied, starts, strict=False):
        of_tensor[tensor].append((offset, length, start))
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    columns = []
    for number, (tensor, first, length) in enumerate(shorts):
        pieces = [piece for piece in sorted(of_tensor[tensor]) if piece[0] >= first]
        pieces += pieces[-1:] * (_PIECES - len(pieces))
        shifts = [start - (offset - first) for offset, _, start in pieces]
        columns.append([*shifts, *(offset - first + part for offset, part, _ in pieces)])
        numbers[size or 1 << (length - 1).bit_length()].append(number)
    by_size = [
        (padded, torch.tensor([columns[i] for i in some], device=device).T.contiguous())
        for padded, some in numbers.items()
    ]
    if len(by_size) <= 1:
        return Padded(by_size, None)
    order = torch.tensor([i for some in numbers.values() for i in some]).argsort() + before
    return Padded(by_size, torch.cat([torch.arange(before), order]).to(device))


@kernel
def pad_rows(x: Tensor, places: Tensor, size: int) -> Tensor:
    """Return the buckets at `places` in `x` `[w, n]`, padded to `[w, buckets, size]`."""
    *shifts, first_end, second_end, length = places.unsqueeze(-1).unbind(0)
    i = torch.arange(size, device=x.device)
    shift = torch.where(i < first_end, shifts[0], torch.where(i < second_end, shifts[1], shifts[2]))
    return torch.where(i < length, x[:, torch.where(i < length, i + shift, 0)], 0)
