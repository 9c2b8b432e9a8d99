"""Payload bits, counted from the tensors that workers pass to collectives and get from them.

A payload is what one worker has for the others: what it contributes to a sum or a gather, and in an
all-to-all the parts for other workers. The algorithms, from which the bits on the wire follow, are:

    all_reduce       a ring that passes on W-ths of the message, first to add them up, then to
                     distribute the sums
    all_gather       a ring that passes on whole messages
    ragged_gather    every worker sends its message, whose size is its own, to every other worker
                     (on gloo a ring passes them on: as many bits, and no slower)
    all_to_all       every worker sends every other worker its part
    ring_hop         every worker passes one message on to its neighbor in a ring

gloo and NCCL run these; on gloo, we send gathers and all-to-alls ourselves. NCCL may use trees for
small sums, which move as many bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:  # Importing it takes long, and predictions read bits without it.
    from torch import Tensor

Collective = Literal["all_reduce", "all_gather", "ragged_gather", "all_to_all", "ring_hop"]
Level = Literal["all", "inside", "between"]  # all workers; those of a node; one per node


def wire_bits(collective: Collective, payload_bits: float, workers: int) -> float:
    """Return the bits that a worker sends, or passes on for others, until all have their result.

    It receives as many. Where workers differ, it is their mean.
    """
    if collective == "all_reduce":
        return 2 * (workers - 1) * payload_bits / workers
    if collective in ("all_gather", "ragged_gather"):
        return (workers - 1) * payload_bits
    return payload_bits if workers > 1 else 0


def row_bits(tensors: Sequence[Tensor]) -> int:
    """Return the bits of one row of `[w, ...]` tensors."""
    return sum(8 * t.element_size() * (t.numel() // t.shape[0]) for t in tensors)


class Message(NamedTuple):
    """The collectives of one kind in a step."""

    level: Level
    collective: Collective
    number: float
    bits: float  # payload per worker, in all of them together


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
