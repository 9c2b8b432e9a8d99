"""One worker of many, without the others."""

from __future__ import annotations

from torch import Tensor

from gcbench.comm import Transport
from gcbench.comm.transport import Reduction


class Echo:
    """A transport that brings a process its own message from each of the others, so that it
    computes, and counts, what a real process does."""

    rank = 0

    def __init__(self, processes: int) -> None:
        self.processes = processes

    def all_reduce(self, flat: Tensor, op: Reduction) -> None:
        if op == "sum":
            flat *= self.processes

    def all_gather(self, message: Tensor) -> Tensor:
        return message.repeat(self.processes, 1)

    def all_to_all(self, by_process: Tensor) -> Tensor:
        return by_process

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        return [row.clone() for _ in range(self.processes) for row in rows]

    def split(self, size: int) -> tuple[Transport, Transport]:
        return Echo(size), Echo(self.processes // size)
