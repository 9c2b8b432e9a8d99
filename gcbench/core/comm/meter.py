"""Payload bits, counted from the tensors that workers pass to collectives and get from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from gcbench.core.comm.network import Collective, Level, Message, wire_bits


def row_bits(tensors: Sequence[Tensor]) -> int:
    """Return the bits of one row of `[w, ...]` tensors."""
    return sum(8 * t.element_size() * (t.numel() // t.shape[0]) for t in tensors)


class Kind(NamedTuple):
    """Collectives that are counted together."""

    level: Level
    collective: Collective
    workers: int  # that take part in one collective


@dataclass
class Total:
    """The messages and bits that one worker sent and received."""

    messages: int = 0
    sent_bits: int = 0
    received_bits: int = 0

    def wire_bits(self, kind: Kind) -> float:
        return wire_bits(kind.collective, self.sent_bits, kind.workers)


Totals = dict[Kind, Total]


class Meter:
    """Running totals of the workers in this process; integers, so that nothing waits for a device.

    The bits on the wire follow from a payload and its kind, and are computed on demand.
    """

    def __init__(self, rows: Sequence[Sequence[Totals]], level: Level = "all") -> None:
        # A row of tensors belongs to a worker, or to a node, whose workers share its bits evenly.
        self._rows = rows
        self._level = level

    @staticmethod
    def of_workers(count: int) -> Meter:
        return Meter([[{}] for _ in range(count)])

    def part(self, level: Level, rows: Sequence[range]) -> Meter:
        """Return a meter that adds a level to these totals; its row i is this one's `rows[i]`."""
        return Meter([[totals for k in group for totals in self._rows[k]] for group in rows], level)

    @property
    def totals_by_worker(self) -> list[Totals]:
        """Return the totals of each worker."""
        return [totals for row in self._rows for totals in row]

    @property
    def sent_bits(self) -> list[int]:
        return [
            sum(total.sent_bits for total in totals.values()) for totals in self.totals_by_worker
        ]

    @property
    def received_bits(self) -> list[int]:
        return [
            sum(total.received_bits for total in totals.values())
            for totals in self.totals_by_worker
        ]

    @property
    def wire_bits(self) -> list[float]:
        return [
            sum(total.wire_bits(kind) for kind, total in totals.items())
            for totals in self.totals_by_worker
        ]

    def count(
        self, collective: Collective, workers: int, sent: Sequence[int], received: Sequence[int]
    ) -> None:
        """Count one message per row, with its `sent` and `received` bits."""
        kind = Kind(self._level, collective, workers)
        for row, out, back in zip(self._rows, sent, received, strict=True):
            for i, totals in enumerate(row):
                total = totals.setdefault(kind, Total())
                total.messages += 1
                total.sent_bits += (out + i) // len(row)
                total.received_bits += (back + i) // len(row)

    def count_equal(self, collective: Collective, workers: int, sent: int, received: int) -> None:
        self.count(collective, workers, [sent] * len(self._rows), [received] * len(self._rows))

    def messages(self) -> list[Message]:
        """Return what was counted, by kind, as means over workers."""
        rows = self.totals_by_worker
        return [
            Message(
                k.level, k.collective, t.messages, sum(r[k].sent_bits for r in rows) / len(rows)
            )
            for k, t in rows[0].items()
        ]

    def state(self) -> list[PlainTotals]:
        """Return the totals of each worker as plain values, for a file."""
        return [
            [((*k,), (t.messages, t.sent_bits, t.received_bits)) for k, t in totals.items()]
            for totals in self.totals_by_worker
        ]

    def load(self, state: Sequence[PlainTotals]) -> None:
        for totals, plain in zip(self.totals_by_worker, state, strict=True):
            totals.clear()
            totals.update({Kind(*kind): Total(*total) for kind, total in plain})


PlainTotals = list[tuple[tuple[Level, Collective, int], tuple[int, int, int]]]
