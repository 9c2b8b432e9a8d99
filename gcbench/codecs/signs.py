"""Signs as bits and the sums of either side, in one pass where C++ is compiled."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.codecs.native import load_native

_FUNCTIONS = (("signs", "****nn"), ("add_sides", "***n"))
_ROWS = 32


class Sides(NamedTuple):
    """Sums over the d values of each bucket, float64 `[w, buckets]`."""

    positive: Tensor  # the sum of those that are at least 0
    negative: Tensor  # of the others
    nonnegative: Tensor  # how many are at least 0


def signs_and_sides(
    matrix: Tensor, rest: Tensor, buckets: Tensor, rest_buckets: Tensor, count: int
) -> tuple[Tensor, Sides] | None:
    """Return the bits v >= 0 of groups of rows as words, and the sides of all values.

    Groups `[w, groups, 32, row]` have rows in one of `count` buckets each, `[groups, 32]`. Their
    words are `[w, groups, 1, row]`, in the order of `to_words`. The sides count these values and
    the `rest` `[w, n]`, each in a bucket `[n]`. None where nothing does all at once.
    """
    library = load_native("signs", _FUNCTIONS, matrix)
    if library is None:
        return None
    w, groups, rows, row = matrix.shape
    assert rows == _ROWS and all(x.is_contiguous() for x in (buckets, rest_buckets, *matrix, *rest))
    words = torch.empty(w, groups, 1, row, dtype=torch.int32)
    sides = torch.zeros(w, count, 3, dtype=torch.float64)
    for x, tail, out, of_buckets in zip(matrix, rest, words, sides, strict=True):
        library.signs(
            x.data_ptr(), buckets.data_ptr(), out.data_ptr(), of_buckets.data_ptr(), groups, row
        )
        library.add_sides(
            tail.data_ptr(), rest_buckets.data_ptr(), of_buckets.data_ptr(), tail.numel()
        )
    return words, Sides(*sides.unbind(-1))
