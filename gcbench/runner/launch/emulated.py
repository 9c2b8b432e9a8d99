"""A transport whose calls last as if processes were hosts with a given link."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.core.comm.transport import GlooTransport, NcclTransport, Reduction, Transport
from gcbench.runner.network import Link, Network


class EmulatedTransport:
    """A transport whose calls last as if every process were a host with the given link."""

    def __init__(self, inner: GlooTransport | NcclTransport, link: Link) -> None:
        self.rank = inner.rank
        self.processes = inner.processes
        self._inner = inner
        self._link = link
        self._network = Network(inner.processes, 1, link, link)

    def all_reduce(self, flat: Tensor, op: Reduction) -> None:
        with self._stretch(self._network.seconds("all_reduce", 8 * flat.nbytes), flat.device):
            self._inner.all_reduce(flat, op)

    def all_gather(self, message: Tensor) -> Tensor:
        with self._stretch(self._network.seconds("all_gather", 8 * message.nbytes), message.device):
            return self._inner.all_gather(message)

    def all_to_all(self, by_process: Tensor) -> Tensor:
        leaving = 8 * by_process[1:].nbytes
        with self._stretch(self._network.seconds("all_to_all", leaving), by_process.device):
            return self._inner.all_to_all(by_process)

    def pass_on(self, message: Tensor) -> Tensor:
        with self._stretch(self._network.seconds("ring_hop", 8 * message.nbytes), message.device):
            return self._inner.pass_on(message)

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        w = len(rows)
        bits = [8 * sum(row_bytes[k : k + w]) for k in range(0, len(row_bytes), w)]
        with self._stretch(self._network.point_to_point_seconds(bits), rows[0].device):
            return self._inner.exchange_rows(rows, row_bytes)

    def split(self, size: int) -> tuple[Transport, Transport]:
        node, peers = self._inner.split(size)
        return EmulatedTransport(node, self._link), EmulatedTransport(peers, self._link)

    @contextmanager
    def _stretch(self, seconds: float, device: torch.device) -> Iterator[None]:
        """Make the block last at least `seconds`, counted from the last process's arrival.

        The barrier that waits for this arrival takes 0.1 ms more on one machine.
        """
        _finish(device)
        dist.barrier(self._inner.group)
        end = time.perf_counter() + seconds
        yield
        _finish(device)
        time.sleep(max(0.0, end - time.perf_counter()))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
