"""All W workers in this process: the same mathematics without a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gcbench.comm.base import Comm, Reduction


class VirtualComm(Comm):
    """Every row is here, so the base class has done all before a transport would be asked."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, range(workers))

    def _all_reduce(self, flat: Tensor, op: Reduction) -> None:
        raise AssertionError("one process has nobody to ask")

    def _all_gather(self, message: Tensor) -> Tensor:
        raise AssertionError("one process has nobody to ask")

    def _all_to_all(self, by_process: Tensor) -> Tensor:
        raise AssertionError("one process has nobody to ask")

    def _exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        raise AssertionError("one process has nobody to ask")


class LocalControl:
    """The agreement of one process with itself."""

    def __init__(self) -> None:
        self._urgency = 0

    def gather(self, value: Any) -> list[Any]:
        return [value]

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
