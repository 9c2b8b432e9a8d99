"""The payload of a step, counted by running the step, for any number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.meter import Collective, Message
from gcbench.core.comm.transport import Reduction, Transport
from gcbench.core.compressor import Compressor, State, Step, offsets_of, sizes_of
from gcbench.core.wrappers.virtual import parts_of

Shapes = Mapping[str, tuple[int, ...]]

LATE = 2**20  # the number of the step that is counted, after the end of any warm-up
FEW, MANY = 16, 1024  # the numbers of workers, or of nodes, for which messages are counted
SAMPLED = 2**22  # values of a model that are really coded if codes depend on them
SHORTEST = 2**14  # values that a tensor is cut to at least


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

    def pass_on(self, message: Tensor) -> Tensor:
        self._count_down()
        return message

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
    collectives. It runs on tensors without values, so that a billion of them take no memory. If a
    method's messages take turns, as in ACP-SGD, a step of each turn is run, and the mean is taken.
    Messages that do not depend on the number of workers are counted once. All-to-alls, the hops of
    a ring and gathers of shards are scaled from 16 workers, gathers inside nodes from 16 nodes;
    sums whose lanes widen with the number of workers are counted for every number.

    Codes of variable length are those of a normally distributed gradient, as nobody knows the real
    one; in a model of more than 2^22 values, of two parts of each large tensor. `workers_per_node`
    is for methods that exchange by node.
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
        if self._has("all_to_all", "ragged_gather", "ring_hop") or not (
            sums := self._sums(self._few)
        ):
            return False
        try:
            return sums != self._sums(MANY * self.workers_per_node)
        except ValueError:  # sums of so many workers do not fit
            return True

    def _has(self, *collectives: Collective) -> bool:
        return any(m.collective in collectives for m in self._count(self._few))

    def _sums(self, workers: int) -> list[Message]:
        return [m for m in self._count(workers) if m.collective == "all_reduce"]

    def _scaled(self, message: Message, workers: int) -> Message:
        """Return a message between few workers, as it is between `workers`."""
        factor = 1.0
        if message.collective in ("all_to_all", "ring_hop"):
            factor = (1 - 1 / workers) / (1 - 1 / self._few)
        elif message.level == "inside" and message.collective == "all_gather":
            factor = (workers // self.workers_per_node - 1) / (FEW - 1)
        elif message.collective == "all_gather" and self._has("all_to_all", "ring_hop"):
            factor = self._few / workers
        hops = (workers - 1) / (self._few - 1) if message.collective == "ring_hop" else 1
        return message._replace(bits=message.bits * factor, number=message.number * hops)

    def _count(self, workers: int) -> list[Message]:
        if workers not in self._counted:
            try:
                counted = self._step(workers, self.shapes, torch.device("meta"))
            except (NotImplementedError, RuntimeError, TypeError):
                # The codes depend on the values, which meta tensors do not have.
                counted = self._step_with_values(workers)
            self._counted[workers] = counted
        return self._counted[workers]

    def _step_with_values(self, workers: int) -> list[Message]:
        """Return the messages of a step on random values, of large models those that follow.

        Bits grow linearly with the tensors, whose buckets are alike. So a line goes through the
        bits of two models with shorter tensors, which also has what does not grow: small tensors,
        the tables of a code, and lengths.
        """
        device, whole = torch.device("cpu"), _count_values(self.shapes)
        least, *sizes = self._sizes_to_cut(whole)
        if not self._collectives:  # which decodes: with two workers, each shape once
            kinds = {str(shape): _cut(shape, least) for shape in self.shapes.values()}
            self._step(2 * self.workers_per_node, kinds, device)
        longer, shorter = (
            {k: _cut(shape, size) for k, shape in self.shapes.items()} for size in sizes
        )
        counted = self._step(workers, longer, device)
        if longer == dict(self.shapes):
            return counted
        others = self._step(workers, shorter, device)
        values = _count_values(longer)
        slope = (whole - values) / (values - _count_values(shorter))
        return [
            message._replace(bits=message.bits + slope * (message.bits - other.bits))
            for message, other in zip(counted, others, strict=True)
        ]

    def _sizes_to_cut(self, whole: int) -> tuple[int, int, int]:
        """Return three numbers of values that large tensors may be cut to.

        The least is that of tensors which are sent as large ones are; the others are those of the
        longer and the shorter tensors that are coded.
        """
        parts = list(parts_of(self.compressor))
        found = [getattr(part, key, 0) for part in parts for key in ("min_size", "bucket_size")]
        least = max([SHORTEST, *(size for size in found if isinstance(size, int))])
        if whole <= SAMPLED or any(getattr(part, "per_layer", False) for part in parts):
            return least, whole, whole
        size = SAMPLED
        while size >= 4 * least and self._values_in_tensors_of(size) > SAMPLED:
            size //= 2
        return least, size, size // 2

    def _values_in_tensors_of(self, size: int) -> int:
        return sum(min(prod(shape), size) for shape in self.shapes.values())

    def _step(self, workers: int, shapes: Shapes, device: torch.device) -> list[Message]:
        left = [self._collectives]
        transport = _OneOfMany(workers, left)
        comm = Comm(workers, transport, workers_per_host=min(workers, self.workers_per_node))
        generator = torch.Generator().manual_seed(0)
        grads = {
            k: torch.empty(1, *s, device=device)
            if device.type == "meta"
            else torch.randn(1, *s, generator=generator)
            for k, s in shapes.items()
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


def _count_values(shapes: Shapes) -> int:
    return sum(prod(shape) for shape in shapes.values())


def _cut(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return a shape of about `size` values, and not fewer, that fits in the beginning of `shape`.

    Its first dimensions are shorter.
    """
    inner = [prod(shape[i:]) for i in range(1, len(shape) + 1)]
    return tuple(min(n, -(-size // each)) for n, each in zip(shape, inner, strict=True))
