"""The payload of a step, counted by running the step, for any number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gcbench.comm import Comm, Transport
from gcbench.comm.transport import Reduction
from gcbench.compressors import Compressor, State, Step, offsets_of, parts_of, sizes_of
from gcbench.predict.model import Message

Shapes = Mapping[str, tuple[int, ...]]

LATE = 2**20  # the number of the step that is counted, after the end of any warm-up
FEW, MANY = 16, 1024  # the numbers of workers, or of nodes, for which messages are counted


class _Last(Exception):
    """Raised to end a step once all messages to be counted have been sent."""


class _OneOfMany:
    """A transport to processes that all send what this one sends, for a given number of exchanges.

    `left` holds that number, which all transports made by `split` count down together. `_Last` is
    raised when it reaches 0; if it starts at 0, exchanges are only counted.
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
    """The messages of a compressor on tensors of these shapes.

    One worker's step is run up to its last collective, without decoding, and the meter counts its
    collectives. If a method's messages take turns, as in ACP-SGD, a step of each turn is run, and
    the mean is taken. Messages that do not depend on the number of workers are counted once.
    All-to-alls and gathers of shards are scaled from 16 workers, gathers inside nodes from 16
    nodes; sums whose lanes widen with the number of workers are counted for every number. Codes
    of variable length are those of a normally distributed gradient. `workers_per_node` is for
    methods that exchange by node.
    """

    compressor: Compressor
    shapes: Shapes
    workers_per_node: int = 1
    _counted: dict[int, list[Message]] = field(default_factory=dict)
    _collectives: int = 0  # in all steps that are counted, one per turn

    def at(self, workers: int) -> list[Message]:
        """Return the messages of a step with this number of workers; a single worker sends none.

        Raises ValueError for methods that exchange by node if all workers are in one node.
        """
        if workers == 1:
            return []
        try:
            counted = self._count(self._few)
        except ValueError:  # sums of so many workers do not fit, but those of fewer may
            return self._count(workers)
        in_nodes = any(message.level == "inside" for message in counted)
        if in_nodes and workers <= self.workers_per_node:
            raise ValueError(
                f"workers={workers} workers_per_node={self.workers_per_node}: all workers would be "
                "one node, and nothing would be compressed; type more workers, as in "
                f"workers={2 * self.workers_per_node}, smaller nodes, or exchange=gather"
            )
        if self._widens:
            return self._count(workers)
        return [self._scaled(message, workers) for message in counted]

    @property
    def _few(self) -> int:
        return FEW * self.workers_per_node

    @cached_property
    def _widens(self) -> bool:
        """Return whether sums take more bits with more workers."""
        if self._sharded or not (sums := self._sums(self._few)):
            return False
        try:
            return sums != self._sums(MANY * self.workers_per_node)
        except ValueError:  # sums of so many workers do not fit
            return True

    @property
    def _sharded(self) -> bool:
        return any(m.collective == "all_to_all" for m in self._count(self._few))

    def _sums(self, workers: int) -> list[Message]:
        return [m for m in self._count(workers) if m.collective == "all_reduce"]

    def _scaled(self, message: Message, workers: int) -> Message:
        """Return a message between few workers, as it is between `workers`."""
        factor = 1.0
        if message.collective == "all_to_all":
            factor = (1 - 1 / workers) / (1 - 1 / self._few)
        elif message.level == "inside" and message.collective == "all_gather":
            factor = (workers // self.workers_per_node - 1) / (FEW - 1)
        elif message.collective == "all_gather" and self._sharded:
            factor = self._few / workers
        return message._replace(bits=message.bits * factor)

    def _count(self, workers: int) -> list[Message]:
        if workers not in self._counted:
            try:
                self._counted[workers] = self._step(workers, torch.device("meta"))
            except (NotImplementedError, RuntimeError, TypeError):
                # The codes depend on the values, which meta tensors do not have.
                self._counted[workers] = self._step(workers, torch.device("cpu"))
        return self._counted[workers]

    def _step(self, workers: int, device: torch.device) -> list[Message]:
        left = [self._collectives]
        transport = _OneOfMany(workers, left)
        comm = Comm(workers, transport, workers_per_host=min(workers, self.workers_per_node))
        generator = torch.Generator().manual_seed(0)
        grads = {
            k: torch.empty(1, *s, device=device)
            if device.type == "meta"
            else torch.randn(1, *s, generator=generator)
            for k, s in self.shapes.items()
        }
        parts = [part for part in parts_of(self.compressor) if isinstance(part, Compressor)]
        turns = max(part.properties.turns for part in parts)
        state, offsets = State(), offsets_of(sizes_of(grads))
        try:
            for turn in range(turns):
                step = Step(LATE + turn, 1, comm.local, offsets)
                state = self.compressor.aggregate(grads, state, comm, step).state
        except _Last:
            pass
        self._collectives = self._collectives or -left[0]
        return [
            Message(kind.level, kind.collective, total.messages / turns, total.sent_bits / turns)
            for kind, total in comm.meter.totals_by_worker[0].items()
        ]
