"""Codes on a grid that all workers share, in lanes of words that an all-reduce adds.

On a CPU `lanes.cpp` does each step in one pass, with the bits of the eager kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcbench.codecs.buckets import Buckets
from gcbench.codecs.kernels import kernel
from gcbench.codecs.native import is_native, load_native
from gcbench.codecs.packing import lanes_of, pack_lanes, unpack_lanes

Spans = NDArray[np.int64]
"""Rows of a first value, how many values share a unit, and the number of the first unit."""

ONE_SPAN = np.array([[0, 1 << 62, 0]])
EACH_VALUE = np.array([[0, 1, 0]])


class Units(NamedTuple):
    """The factors of centered codes, whose values are `code / half * unit / divisor`."""

    half: float
    unit: Tensor
    divisor: Tensor  # as many as units
    spans: Spans


def bucket_spans(buckets: Buckets) -> Spans:
    """Return the spans of buckets, which have a unit each."""
    rows, tails, _ = buckets.places()
    starts = [*accumulate(buckets.segments, initial=0)]
    spans = sorted((starts[i] + offset, size, first) for i, offset, _, first, size in rows + tails)
    return np.array(spans, dtype=np.int64)


def sum_of_codes(
    codes: Tensor,
    bits: int,
    most: int,
    add: Callable[[Tensor], Tensor],
    units: Units,
    values: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the values `[1, n]` of the sum of all workers' codes, of which no sum exceeds `most`.

    `add` sends words and returns their sum. `values` returns what centered sums stand for, and is
    not called where native code does the same by `units`.
    """
    n, lanes = codes.shape[1], lanes_of(bits)
    if not is_native(units.unit):
        return values(_around_zero(unpack_lanes(add(pack_lanes(codes, bits)), n, bits), most))
    words = torch.empty(len(codes), -(-n // lanes), dtype=torch.int64)
    threads, codes = torch.get_num_threads(), codes.contiguous()
    for row, out in zip(codes, words, strict=True):
        load_native().pack_lanes(
            *(row.data_ptr(), row.element_size(), n, bits, len(out), out.data_ptr(), threads)
        )
    total, result = add(words).contiguous(), torch.empty(1, n)
    unit, divisor = units.unit.contiguous(), units.divisor.contiguous()
    load_native().lane_values(
        *(total.data_ptr(), n, bits, total.shape[1], most, units.half, len(units.spans)),
        *(units.spans.ctypes.data, unit.data_ptr(), divisor.data_ptr(), result.data_ptr(), threads),
    )
    return result


@kernel
def _around_zero(total: Tensor, highest: int) -> Tensor:
    # In integers until the last division: float32 cannot represent odd numbers above 2^24.
    return (2 * total - highest).to(torch.float32) / 2
