"""The seam to the network.

Dimension 0 of every tensor is the worker axis: `[w, ...]` holds one row per worker that lives in this process, `[1, ...]`
is a value on which all workers agree, `[W, ...]` is everything gathered. Collectives take lists, coalesce them into one
message, count its payload and time themselves. All ranks issue them in one order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from gcbench.comm.messages import as_bytes, from_bytes, pad_rows, to_bytes
from gcbench.comm.meter import Meter, row_bits
from gcbench.comm.ordered import float_to_ordered, ordered_to_float

Reduction = Literal["sum", "max", "min", "and"]


class Clock(Protocol):
    def exchange(self) -> AbstractContextManager[Any]:
        """Time of one collective."""


class NoClock:
    def exchange(self) -> AbstractContextManager[Any]:
        return nullcontext()


class Control(Protocol):
    """What processes tell each other besides gradients: never metered, never timed."""

    waits: bool  # for other processes, at this moment

    def gather(self, value: Any) -> list[Any]:
        """Each process's, of plain values that JSON has words for; tuples come back as lists."""

    def gather_tensors(self, x: Tensor) -> list[Tensor]:
        """Each process's, on the CPU and all of one shape and type."""

    def sum(self, x: Tensor) -> Tensor: ...
    def broadcast(self, tensors: Sequence[Tensor]) -> None: ...
    def propose(self, urgency: int) -> None:
        """Starts to ask all processes; the answer is read after the computation under which it hides."""

    def agreed(self) -> int:
        """The highest urgency that any process proposed."""

    def barrier(self) -> None: ...


class Comm(ABC):
    """`workers` W in all, of which this process holds the rows `local`; every process holds equally many."""

    workers_per_host: int | None = None  # None: virtual workers have no hosts

    def __init__(self, workers: int, local: range, clock: Clock | None = None, meter: Meter | None = None) -> None:
        assert workers % len(local) == 0, "every process holds equally many workers"
        self.workers = workers
        self.local = local
        self.processes = workers // len(local)
        self.meter = meter or Meter.of_workers(len(local))
        self.clock: Clock = clock or NoClock()

    def mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """`[w, ...] -> [1, ...]`, the mean over all workers; half precision is divided first so that no sum overflows."""
        if tensors[0].dtype in (torch.float16, torch.bfloat16):
            return _parts(self._reduce([t / self.workers for t in tensors], "sum"), tensors)
        return _parts(self._reduce(tensors, "sum").div_(self.workers), tensors)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """`[w, ...] -> [1, ...]` of integers; the caller chose a type in which W of them fit."""
        assert not any(t.is_floating_point() for t in tensors)
        return _parts(self._reduce(tensors, "sum"), tensors)

    def max(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the maximum over all workers, `[w, ...] -> [1, ...]`; NaN where any worker has NaN."""
        return _parts(self._reduce(tensors, "max"), tensors)

    def min(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the minimum over all workers, `[w, ...] -> [1, ...]`; NaN where any worker has NaN."""
        return _parts(self._reduce(tensors, "min"), tensors)

    def all_bits(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Bitwise and of all workers: `[w, ...] -> [1, ...]`."""
        if tensors[0].is_cuda:  # NCCL has no bitwise reductions
            return [_reduce_rows(rows, "and") for rows in self.gather(tensors)]
        return _parts(self._reduce(tensors, "and"), tensors)

    def gather(self, tensors: Sequence[Tensor], lengths: Sequence[Tensor | None] | None = None) -> list[Tensor]:
        """`[w, ...] -> [W, ...]` of any types, as one message.

        With `lengths[i]` (`[w]`, values of the first `lengths[i][row]` entries count) tensor i is ragged: only the true
        bytes travel, and the result `[W, longest]` is zero behind each row's end.
        """
        if lengths is not None and any(n is not None for n in lengths):
            return self._gather_ragged(tensors, lengths)
        self.count_gather(row_bits(tensors))
        if self.processes == 1:
            return list(tensors)
        message, parts = to_bytes(tensors)
        with self.clock.exchange():
            everyone = self._all_gather(message)
        return [from_bytes(everyone, part) for part in parts]

    def count_gather(self, bits: int) -> None:
        """Of rows of so many bits."""
        self.meter.count_equal("all_gather", self.workers, bits, bits * (self.workers - 1))

    def transpose(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """All-to-all of any types as one message, `[w, W, ...] -> [w, W, ...]`: row i of a result holds what each worker
        had for worker i."""
        bits = row_bits(tensors) // self.workers * (self.workers - 1)
        self.meter.count_equal("all_to_all", self.workers, bits, bits)
        if self.processes == 1:
            return [t.transpose(0, 1).contiguous() for t in tensors]
        w = len(self.local)
        message, parts = to_bytes([t.flatten(0, 1) for t in tensors])
        by_process = message.view(w, self.processes, w, -1).transpose(0, 1).contiguous()  # [P, w here, w there, bytes]
        with self.clock.exchange():
            arrived = self._all_to_all(by_process)
        rows = arrived.permute(2, 0, 1, 3).flatten(0, 2)  # [w W, bytes], sender by sender
        return [from_bytes(rows, part).unflatten(0, (w, self.workers)) for part in parts]

    def _reduce(self, tensors: Sequence[Tensor], op: Reduction) -> Tensor:
        """`[w, ...]` to all of them end to end, `[1, n]`."""
        assert len({t.dtype for t in tensors}) == 1, "one message holds one type"
        w = tensors[0].shape[0]
        rows = [t.reshape(w, -1) for t in tensors]
        # gloo and NCCL lose a NaN that meets a number; as an integer of the same order it survives.
        as_integers = op in ("max", "min") and tensors[0].is_floating_point()
        if as_integers:
            rows = [float_to_ordered(x, nan_is_largest=op == "max") for x in rows]
        flat = torch.cat(rows if w == 1 else [_reduce_rows(x, op) for x in rows], dim=1)
        bits = row_bits([flat])
        self.meter.count_equal("all_reduce", self.workers, bits, bits)
        if self.processes > 1:
            with self.clock.exchange():
                self._all_reduce(flat, op)
        return ordered_to_float(flat) if as_integers else flat

    def _gather_ragged(self, tensors: Sequence[Tensor], lengths: Sequence[Tensor | None]) -> list[Tensor]:
        full = [
            torch.full((t.shape[0],), t[0].numel(), device=t.device, dtype=torch.int64) if n is None else n
            for t, n in zip(tensors, lengths, strict=True)
        ]
        here = torch.stack(full, dim=1).to(torch.int32)  # the lengths travel too, and are charged
        there = self.gather([here])[0].long().cpu()
        item_bytes = torch.tensor([t.element_size() for t in tensors])
        row_bytes = (there * item_bytes).sum(1).tolist()
        sent = [8 * row_bytes[k] for k in self.local]
        self.meter.count("ragged_gather", self.workers, sent, [8 * sum(row_bytes) - own for own in sent])
        rows = [
            torch.cat([as_bytes(t[i].flatten()[:n]) for t, n in zip(tensors, there[k].tolist(), strict=True)])
            for i, k in enumerate(self.local)
        ]
        if self.processes > 1:
            with self.clock.exchange():
                rows = self._exchange_rows(rows, row_bytes)
        starts = (there * item_bytes).cumsum(1) - there * item_bytes
        padded = [pad_rows(rows, starts[:, i], there[:, i], t.dtype) for i, t in enumerate(tensors)]
        return [x.view(-1, *t.shape[1:]) if n is None else x for x, t, n in zip(padded, tensors, lengths, strict=True)]

    @abstractmethod
    def split(self, size: int) -> tuple[list[Comm], Comm]:
        """Nodes of `size` consecutive workers: a Comm inside each node of which workers are here, and one between the nodes,
        whose rows are these nodes. They count on this one's meter. All ranks call it."""

    # What a transport provides; `virtual` never needs them.
    @abstractmethod
    def _all_reduce(self, flat: Tensor, op: Reduction) -> None:
        """In place over processes, `[1, n]`."""

    @abstractmethod
    def _all_gather(self, message: Tensor) -> Tensor:
        """`[w, bytes] -> [W, bytes]`."""

    @abstractmethod
    def _all_to_all(self, by_process: Tensor) -> Tensor:
        """`[P, ...] -> [P, ...]`, slice p goes to and comes from process p."""

    @abstractmethod
    def _exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        """Own rows in, the rows of all W workers out; 1-d uint8 of exactly `row_bytes` each."""


def _parts(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """`[1, ...]` each, as views."""
    w = like[0].shape[0]
    parts = flat.split([t.numel() // w for t in like], dim=1)
    return [part.view_as(t) if w == 1 else part.view(1, *t.shape[1:]) for part, t in zip(parts, like, strict=True)]


def _reduce_rows(x: Tensor, op: Reduction) -> Tensor:
    if op == "sum":
        return x.sum(0, keepdim=True, dtype=x.dtype)
    if op == "and":
        rows = x[:1].clone()
        for row in x[1:]:
            rows &= row
        return rows
    return x.amax(0, keepdim=True) if op == "max" else x.amin(0, keepdim=True)
