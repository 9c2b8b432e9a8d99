"""What a method sends in a step: counted from the step itself, for any number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.comm import Comm, Transport
from gcbench.comm.network import Collective, Level
from gcbench.comm.transport import Reduction
from gcbench.compressors import Compressor, State, Step

Shapes = Mapping[str, tuple[int, ...]]

LATE = 2**20  # number of the step that is counted: no warm-up lasts so long
FEW, MANY = 16, 1024  # workers, or nodes of them, to count with


class Message(NamedTuple):
    """The collectives of one kind in a step."""

    level: Level
    collective: Collective
    number: int  # of them
    bits: float  # payload of a worker, of all of them


class _Last(Exception):
    """Nothing more will be sent."""


class _OneOfMany:
    """A transport to processes that bring what this one brings; it stops after so many exchanges.

    `left` counts them down for all that it is split into.
    """

    rank = 0

    def __init__(self, processes: int, left: list[int]) -> None:
        self.processes = processes
        self._left = left

    def all_reduce(self, flat: Tensor, op: Reduction) -> None:
        self._count_down()

    def all_gather(self, message: Tensor) -> Tensor:
        self._count_down()
        return message.expand(self.processes, -1)

    def all_to_all(self, by_process: Tensor) -> Tensor:
        self._count_down()
        return by_process

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        self._count_down()
        return rows * self.processes

    def split(self, size: int) -> tuple[Transport, Transport]:
        return _OneOfMany(size, self._left), _OneOfMany(self.processes // size, self._left)

    def _count_down(self) -> None:
        self._left[0] -= 1
        if not self._left[0]:
            raise _Last


@dataclass
class Payload:
    """Of a compressor on tensors of these shapes, with `workers_per_node` for those who exchange by node.

    A step of one worker is run, its collectives counted by the meter, and not decoded. What does not depend on the number of
    workers is counted once. All-to-alls and gathers of shards are scaled from 16 workers, gathers inside nodes from 16 nodes;
    sums, whose lanes widen with the workers, are counted for every number. Codes of a length of their own are those of a
    normal gradient.
    """

    compressor: Compressor
    shapes: Shapes
    workers_per_node: int = 1
    _counted: dict[int, list[Message]] = field(default_factory=dict)
    _collectives: int = 0  # of a step
    _varies: bool | None = None

    def at(self, workers: int) -> list[Message]:
        """Nothing for one worker."""
        if workers == 1:
            return []
        few = self._base(FEW)
        scaled = [self._scaled(message, workers) for message in self._count(few)]
        if not self._widens(few):
            return scaled
        return self._count(workers)

    def _base(self, nodes: int) -> int:
        return nodes * self.workers_per_node

    def _widens(self, few: int) -> bool:
        """Whether sums take more bits of more workers."""
        if any(m.collective == "all_to_all" for m in self._count(few)):
            return False
        if self._varies is None:
            sums = [
                [m for m in self._count(w) if m.collective == "all_reduce"]
                for w in (few, self._base(MANY))
            ]
            self._varies = sums[0] != sums[1]
        return self._varies

    def _scaled(self, message: Message, workers: int) -> Message:
        few = self._base(FEW)
        factor = 1.0
        if message.collective == "all_to_all":
            factor = (1 - 1 / workers) / (1 - 1 / few)
        elif message.level == "inside" and message.collective == "all_gather":
            factor = (workers // self.workers_per_node - 1) / (FEW - 1)
        elif message.collective == "all_gather" and self._sharded:
            factor = few / workers
        return message._replace(bits=message.bits * factor)

    @property
    def _sharded(self) -> bool:
        return any(m.collective == "all_to_all" for m in self._count(self._base(FEW)))

    def _count(self, workers: int) -> list[Message]:
        if workers not in self._counted:
            try:
                self._counted[workers] = self._step(workers, torch.device("meta"))
            except (NotImplementedError, RuntimeError, TypeError):  # its codes depend on the values
                self._counted[workers] = self._step(workers, torch.device("cpu"))
        return self._counted[workers]

    def _step(self, workers: int, device: torch.device) -> list[Message]:
        left = [self._collectives]
        transport = _OneOfMany(workers, left)
        comm = Comm(workers, transport, workers_per_host=self.workers_per_node)
        sizes = [torch.Size(s).numel() for s in self.shapes.values()]
        offsets = dict(zip(self.shapes, accumulate(sizes, initial=0), strict=False))
        generator = torch.Generator().manual_seed(0)
        grads = {
            k: torch.empty(1, *s, device=device)
            if device.type == "meta"
            else torch.randn(1, *s, generator=generator)
            for k, s in self.shapes.items()
        }
        try:
            self.compressor.aggregate(grads, State(), comm, Step(LATE, 1, comm.local, offsets))
        except _Last:
            pass
        self._collectives = self._collectives or -left[0]
        totals = comm.meter.totals_by_worker[0]
        return [
            Message(kind.level, kind.collective, total.messages, total.sent_bits)
            for kind, total in totals.items()
        ]
