"""Exchanges with checksums, one message of which may be altered on its way to a process."""

from __future__ import annotations

import torch
from comm_cases import WORKERS, cases
from gloo_pool import Process
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.messages import MessageAltered
from gcbench.core.comm.meter import Meter
from gcbench.core.comm.transport import GlooTransport, Reduction, Transport

CASES = {  # kind of exchange to alter: a case that uses it
    "all_gather": "gather",
    "exchange_rows": "ragged",
    "all_to_all": "transpose",
    "all_reduce": "mean torch.float32",
}


class Altering:
    """A transport that flips one bit from worker 2 to worker 1, in one kind of exchange."""

    def __init__(self, inner: Transport) -> None:
        self.rank = inner.rank
        self.processes = inner.processes
        self.altered = ""
        self._inner = inner

    def all_reduce(self, flat: Tensor, op: Reduction) -> None:
        self._inner.all_reduce(flat, op)
        self._flip("all_reduce", flat)

    def all_gather(self, message: Tensor) -> Tensor:
        everyone = self._inner.all_gather(message)
        self._flip("all_gather", everyone[2])
        return everyone

    def all_to_all(self, by_process: Tensor) -> Tensor:
        arrived = self._inner.all_to_all(by_process)
        self._flip("all_to_all", arrived[2])
        return arrived

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        everyone = self._inner.exchange_rows(rows, row_bytes)
        self._flip("exchange_rows", everyone[2])
        return everyone

    def split(self, size: int) -> tuple[Transport, Transport]:
        return self._inner.split(size)

    def _flip(self, name: str, arrived: Tensor) -> None:
        if name == self.altered and self.rank == 1:
            arrived.view(-1).view(torch.uint8)[3] ^= 8


def flipped_bits(process: Process) -> dict[str, str | None]:
    """Return for each case the error of the checksum in this process, or None."""
    transport = Altering(GlooTransport(process.world))
    comm = Comm(WORKERS, transport, checksum=True)
    errors: dict[str, str | None] = {}
    for name, case in CASES.items():
        transport.altered = name
        try:
            cases(comm)[case]()
            errors[name] = None
        except MessageAltered as error:
            errors[name] = str(error)
        process.control.barrier()
    return errors


def results(comm: Comm) -> tuple[dict[str, list[Tensor]], dict[str, list[int]]]:
    values, bits = {}, {}
    for name, case in cases(comm).items():
        comm.meter = Meter.of_workers(len(comm.local))
        values[name] = [x.clone() for x in case()]
        bits[name] = comm.meter.sent_bits
    return values, bits


def with_and_without(
    process: Process | None,
) -> list[tuple[dict[str, list[Tensor]], dict[str, list[int]]]]:
    transport = GlooTransport(process.world) if process else None
    return [results(Comm(WORKERS, transport, checksum=checked)) for checked in (False, True)]
