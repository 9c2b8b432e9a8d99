"""Signs as bits and the sums of either side, in one pass where C++ or Triton is compiled."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.codecs.buckets import Groups
from gcbench.codecs.kernels import summing_kernel
from gcbench.codecs.native import load_native
from gcbench.codecs.words import to_words

_FUNCTIONS = (("signs", "****nn"), ("add_sides", "***n"))
_ROWS = 32


class Sides(NamedTuple):
    """Sums over the d values of each bucket, float64 `[w, buckets]`."""

    positive: Tensor  # the sum of those that are at least 0
    negative: Tensor  # of the others
    nonnegative: Tensor  # how many are at least 0


def signs_and_sides(matrix: Tensor, rest: Tensor, groups: Groups) -> tuple[Tensor, Sides] | None:
    """Return the bits v >= 0 of groups of rows as words, and the sides of all values.

    The words of groups `[w, groups, 32, row]` are `[w, groups, 1, row]`, in the order of
    `to_words`. The sides are those of each bucket, and count the `rest` `[w, n]`, too. None where
    nothing does all at once.
    """
    if matrix.is_cuda:
        return sum_rows_then_buckets(matrix, rest, groups)
    library = load_native("signs", _FUNCTIONS, matrix)
    if library is None:
        return None
    w, count_of_groups, rows, row = matrix.shape
    buckets, rest_buckets = groups.buckets, groups.rest_buckets
    assert rows == _ROWS and all(x.is_contiguous() for x in (buckets, rest_buckets, *matrix, *rest))
    words = torch.empty(w, count_of_groups, 1, row, dtype=torch.int32)
    sides = torch.zeros(w, len(groups.bucket_lengths), 3, dtype=torch.float64)
    for x, tail, out, of_buckets in zip(matrix, rest, words, sides, strict=True):
        library.signs(
            x.data_ptr(),
            buckets.data_ptr(),
            out.data_ptr(),
            of_buckets.data_ptr(),
            count_of_groups,
            row,
        )
        library.add_sides(
            tail.data_ptr(), rest_buckets.data_ptr(), of_buckets.data_ptr(), tail.numel()
        )
    return words, Sides(*sides.unbind(-1))


def sum_rows_then_buckets(matrix: Tensor, rest: Tensor, groups: Groups) -> tuple[Tensor, Sides]:
    """Return what `signs_and_sides` does, by a kernel over the rows and sums over buckets."""
    words, sides = [], []
    for x, tail in zip(matrix, rest, strict=True):
        word, *of_rows = _signs_and_sums(x)
        words.append(word)
        up = tail >= 0
        of_tail = torch.where(up, tail, 0), torch.where(up, 0, tail), up
        parts = [
            torch.cat([a.flatten(), b.double()]) for a, b in zip(of_rows, of_tail, strict=True)
        ]
        # `unsafe`: otherwise the host would wait to see that the lengths add up.
        sides.append(
            [
                torch.segment_reduce(
                    part[groups.by_bucket], "sum", lengths=groups.bucket_lengths, unsafe=True
                )
                for part in parts
            ]
        )
    return torch.stack(words).unsqueeze(2), Sides(*map(torch.stack, zip(*sides, strict=True)))


@summing_kernel
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
