"""Exchanges with checksums, one message of which may be altered on its way to a process."""

from __future__ import annotations

from comm_cases import WORKERS, cases
from gloo_pool import Process
from torch import Tensor

from gcbench.comm import ChecksumComm, ProcessGroupComm, VirtualComm
from gcbench.comm.base import Comm, Reduction
from gcbench.comm.checksum import MessageAltered
from gcbench.comm.meter import Meter

CASES = {"gather": "gather", "ragged": "ragged", "transpose": "transpose", "mean": "mean torch.float32"}


class Altering(ProcessGroupComm):
    """Flips one bit of what arrives from worker 2 at the process of worker 1."""

    def _all_reduce(self, flat: Tensor, op: Reduction) -> None:
        super()._all_reduce(flat, op)
        self._flip(flat.view(-1)[3:4])

    def _all_gather(self, message: Tensor) -> Tensor:
        return self._flipped(super()._all_gather(message))

    def _all_to_all(self, by_process: Tensor) -> Tensor:
        return self._flipped(super()._all_to_all(by_process))

    def _exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        found = super()._exchange_rows(rows, row_bytes)
        self._flip(found[2][4:5])
        return found

    def _flipped(self, by_sender: Tensor) -> Tensor:
        self._flip(by_sender[2].view(-1)[4:5])
        return by_sender

    def _flip(self, place: Tensor) -> None:
        if self.local.start == 1:
            byte = place.view(-1).view(place.dtype)
            byte.copy_(byte * 1.5 if byte.is_floating_point() else byte ^ 8)


def flipped_bits(process: Process) -> dict[str, str | None]:
    """By case, what the checksum says of it in this process."""
    comm = ChecksumComm(Altering(WORKERS, process.comm(WORKERS)._group))
    told: dict[str, str | None] = {}
    for name, case in CASES.items():
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
