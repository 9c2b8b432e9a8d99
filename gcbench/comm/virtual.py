"""All W workers in this process: the same mathematics without a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gcbench.comm.base import Comm, Reduction
from gcbench.comm.meter import Meter


class VirtualComm(Comm):
    """Every row is here, so the base class has done all before a transport would be asked."""

    def __init__(self, workers: int, meter: Meter | None = None) -> None:
        super().__init__(workers, range(workers), meter=meter)

    def split(self, size: int) -> tuple[list[Comm], Comm]:
        return whole_nodes(self, size), VirtualComm(self.workers // size, node_meter(self, size))

    def _all_reduce(self, flat: Tensor, op: Reduction) -> None:
        raise AssertionError("one process has nobody to ask")

    def _all_gather(self, message: Tensor) -> Tensor:
        raise AssertionError("one process has nobody to ask")

    def _all_to_all(self, by_process: Tensor) -> Tensor:
        raise AssertionError("one process has nobody to ask")

    def _exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        raise AssertionError("one process has nobody to ask")


def whole_nodes(comm: Comm, size: int) -> list[Comm]:
    """A Comm inside each of the nodes whose `size` workers are all in this process."""
    starts = range(0, len(comm.local), size)
    return [VirtualComm(size, comm.meter.part("inside", [range(k, k + 1) for k in range(i, i + size)])) for i in starts]


def node_meter(comm: Comm, size: int) -> Meter:
    """Its rows are nodes, or what of a node is in this process."""
    held = min(size, len(comm.local))
    return comm.meter.part("between", [range(i, i + held) for i in range(0, len(comm.local), held)])


class LocalControl:
    """The agreement of one process with itself."""

    waits = False

    def __init__(self) -> None:
        self._urgency = 0

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def gather_tensors(self, x: Tensor) -> list[Tensor]:
        return [x]

    def sum(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        pass

    def propose(self, urgency: int) -> None:
        self._urgency = urgency

    def agreed(self) -> int:
        return self._urgency

    def barrier(self) -> None:
        pass
