"""Signs as bits and the sums of either side, in one pass where C++ is compiled."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.codecs.native import native

_FUNCTIONS = (("signs", "****nn"), ("add_sides", "***n"))
_ROWS = 32


class Sides(NamedTuple):
    """Of the d values of each bucket, float64 `[w, buckets]`."""

    positive: Tensor  # the sum of those that are at least 0
    negative: Tensor  # of the others
    nonnegative: Tensor  # how many are at least 0


def signs_and_sides(
    matrix: Tensor, rest: Tensor, buckets: Tensor, rest_buckets: Tensor, count: int
) -> tuple[Tensor, Sides] | None:
    """Groups of rows `[w, groups, 32, row]`, each in one of `count` buckets `[groups, 32]`, to the bits v >= 0 as words
    `[w, groups, 1, row]`, laid out as by `to_words`, and the sides of these values and of the `rest` `[w, n]`, each in a bucket
    `[n]`; None where nothing does all at once."""
    library = native("signs", _FUNCTIONS, matrix)
    if library is None:
        return None
    w, groups, rows, row = matrix.shape
    assert rows == _ROWS and all(x.is_contiguous() for x in (buckets, rest_buckets, *matrix, *rest))
    words, sides = (
        torch.empty(w, groups, 1, row, dtype=torch.int32),
        torch.zeros(w, count, 3, dtype=torch.float64),
    )
    for x, tail, out, of_buckets in zip(matrix, rest, words, sides, strict=True):
        library.signs(
            x.data_ptr(), buckets.data_ptr(), out.data_ptr(), of_buckets.data_ptr(), groups, row
        )
        library.add_sides(
            tail.data_ptr(), rest_buckets.data_ptr(), of_buckets.data_ptr(), tail.numel()
        )
    return words, Sides(*sides.unbind(-1))
