"""One worker of many, without the others."""

from __future__ import annotations

from torch import Tensor

from gcbench.comm import Comm
from gcbench.comm.base import Clock, Reduction


class Echo(Comm):
    """A process with one of `workers` workers, which gets its own message from each of the others: it computes, and counts,
    what a real process does."""

    def __init__(self, workers: int, clock: Clock) -> None:
        super().__init__(workers, range(1), clock)

    def split(self, size: int) -> tuple[list[Comm], Comm]:
        raise AssertionError("there are no nodes")

    def _all_reduce(self, flat: Tensor, op: Reduction) -> None:
        if op == "sum":
            flat *= self.workers

    def _all_gather(self, message: Tensor) -> Tensor:
        return message.repeat(self.workers, 1)

    def _all_to_all(self, by_process: Tensor) -> Tensor:
        return by_process

    def _exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        return [row.clone() for _ in range(self.workers) for row in rows]
