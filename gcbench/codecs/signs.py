"""Signs as bits, and the sums of either sign, in one pass on a GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.codecs.buckets import Groups, Rows
from gcbench.codecs.kernels import kernel
from gcbench.codecs.words import to_words


class Sides(NamedTuple):
    """Sums over the d values of each bucket, float64 `[w, buckets]`."""

    positive: Tensor  # the sum of those that are at least 0
    negative: Tensor  # the sum of the others
    nonnegative: Tensor  # how many are at least 0


def signs_and_sides(rows: Rows, groups: Groups) -> tuple[Tensor, Sides]:
    """Return the bits v >= 0 of groups of rows as words, and the sides of each bucket.

    Groups `[w, groups, 32, row]` become int32 words `[w, groups, 1, row]`, in the order of
    `to_words`. The sides include the values outside groups. A kernel sums rows; then follow the
    sums over buckets.
    """
    words, sides = [], []
    for worker, tail in enumerate(rows.rest):
        parts = [_signs_and_sums(matrix[worker]) for _, matrix in rows.matrices]
        none = tail.new_empty(0, rows.row, dtype=torch.int32)
        words.append(torch.cat([none, *(part[0] for part in parts)]))
        up = tail >= 0
        of_tail = torch.where(up, tail, 0), torch.where(up, 0, tail), up
        each = [
            torch.cat([*(part[k].flatten() for part in parts), sums.double()])
            for k, sums in enumerate(of_tail, start=1)
        ]
        # `unsafe` skips a check of the lengths, for which the host would wait.
        sides.append(
            [
                torch.segment_reduce(
                    sums[groups.by_bucket], "sum", lengths=groups.bucket_lengths, unsafe=True
                )
                for sums in each
            ]
        )
    return torch.stack(words).unsqueeze(2), Sides(*map(torch.stack, zip(*sides, strict=True)))


@kernel
def _signs_and_sums(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return words `[groups, row]` and three sums `[groups, 32]` of groups `[groups, 32, row]`."""
    up = x >= 0
    (word,) = to_words(up.to(torch.int32), 2)
    wide = x.double()
    return (
        word,
        torch.where(up, wide, 0).sum(-1),
        torch.where(up, 0, wide).sum(-1),
        up.sum(-1, dtype=torch.float64),
    )
