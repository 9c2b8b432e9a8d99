"""Payload bits, counted from the tensors that a worker's row hands to a collective and gets from the others."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def row_bits(tensors: Sequence[Tensor]) -> int:
    """Bits of one row of `[w, ...]` tensors."""
    return sum(8 * t.element_size() * (t.numel() // t.shape[0]) for t in tensors)


class Meter:
    """Running totals for the rows of this process; integers, so that nothing waits for a device."""

    def __init__(self, rows: int) -> None:
        self.sent_bits = [0] * rows
        self.received_bits = [0] * rows

    def count(self, sent: Sequence[int], received: Sequence[int]) -> None:
        for row, (out, back) in enumerate(zip(sent, received, strict=True)):
            self.sent_bits[row] += out
            self.received_bits[row] += back

    def count_equal(self, sent: int, received: int) -> None:
        rows = len(self.sent_bits)
        self.count([sent] * rows, [received] * rows)
