"""Exchanges with checksums, one message of which may be altered on its way to a process."""

from __future__ import annotations

import torch
from comm_cases import WORKERS, cases
from gloo_pool import Process
from torch import Tensor

from gcbench.comm import ChecksumComm, ProcessGroupComm, VirtualComm
from gcbench.comm.base import Comm, Reduction
from gcbench.comm.checksum import MessageAltered
from gcbench.comm.meter import Meter

CASES = {  # what is altered: the exchange that is
    "_all_gather": "gather",
    "_exchange_rows": "ragged",
    "_all_to_all": "transpose",
    "_all_reduce": "mean torch.float32",
}


class Altering(ProcessGroupComm):
    """Flips one bit of what arrives from worker 2 at the process of worker 1, in one kind of exchange."""

    altered = ""

    def _all_reduce(self, flat: Tensor, op: Reduction) -> None:
        super()._all_reduce(flat, op)
        self._flip("_all_reduce", flat)

    def _all_gather(self, message: Tensor) -> Tensor:
        everyone = super()._all_gather(message)
        self._flip("_all_gather", everyone[2])
        return everyone

    def _all_to_all(self, by_process: Tensor) -> Tensor:
        arrived = super()._all_to_all(by_process)
        self._flip("_all_to_all", arrived[2])
        return arrived

    def _exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        everyone = super()._exchange_rows(rows, row_bytes)
        self._flip("_exchange_rows", everyone[2])
        return everyone

    def _flip(self, name: str, arrived: Tensor) -> None:
        if name == self.altered and self.local.start == 1:
            arrived.view(-1).view(torch.uint8)[3] ^= 8


def flipped_bits(process: Process) -> dict[str, str | None]:
    """By case, what the checksum says of it in this process."""
    inner = Altering(WORKERS, process.comm(WORKERS)._group)
    comm = ChecksumComm(inner)
    told: dict[str, str | None] = {}
    for name, case in CASES.items():
        inner.altered = name
        try:
            cases(comm)[case]()
            told[name] = None
        except MessageAltered as error:
            told[name] = str(error)
        process.control.barrier()
    return told


def results(comm: Comm) -> tuple[dict[str, list[Tensor]], dict[str, list[int]]]:
    found, bits = {}, {}
    for name, case in cases(comm).items():
        comm.meter = Meter.of_workers(len(comm.local))
        found[name] = [x.clone() for x in case()]
        bits[name] = comm.meter.sent_bits
    return found, bits


def with_and_without(process: Process | None) -> list[tuple[dict[str, list[Tensor]], dict[str, list[int]]]]:
    plain = process.comm(WORKERS) if process else VirtualComm(WORKERS)
    return [results(plain), results(ChecksumComm(plain))]
