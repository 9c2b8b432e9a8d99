"""The collectives, through which all gradient traffic goes.

Dimension 0 of every tensor is the worker axis: `[w, ...]` holds one row per worker in this process,
`[1, ...]` is a value on which all workers agree, and `[W, ...]` has the gathered rows of all
workers. Collectives take lists of tensors, coalesce them into one message, count its payload and
time themselves. All ranks issue them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.comm.messages import (
    SUM_BYTES,
    as_bytes,
    float_to_ordered,
    from_bytes,
    ordered_to_float,
    pad_rows,
    pair_sums,
    refuse_altered,
    refuse_different,
    row_sums,
    to_bytes,
)
from gcbench.core.comm.meter import Meter, row_bits
from gcbench.core.comm.transport import Reduction, Transport

HALVES = torch.float16, torch.bfloat16  # types whose sums are rounded at every hop
_SEGMENT_BYTES = 1024 * 1024  # of gloo's all-reduce

Lengths = Sequence[Tensor | None]
Listener = Callable[[str, Sequence[Tensor], Lengths], None]
"""Called before a collective, with its name and what the workers here bring to it."""


class Clock(Protocol):
    def exchange(self) -> AbstractContextManager[Any]:
        """Return a context that times the one collective in it."""


class NoClock:
    def exchange(self) -> AbstractContextManager[Any]:
        """Return a context that times nothing."""
        return nullcontext()


class Comm:
    """The collectives of `workers` workers, of which this process holds the rows `local`.

    Without a `transport`, all workers are in this process. With one, every process holds equally
    many: process p holds the workers `p * w .. (p + 1) * w - 1`, so that gathered rows are in
    worker order. With `checksum`, collectives raise MessageAltered if a message arrives altered.
    Between nodes, a row is a node, of which `workers_per_row` workers are in this process.
    """

    def __init__(
        self,
        workers: int,
        transport: Transport | None = None,
        clock: Clock | None = None,
        meter: Meter | None = None,
        *,
        workers_per_host: int | None = None,
        checksum: bool = False,
        workers_per_row: int = 1,
        listener: Listener = lambda collective, tensors, lengths: None,
    ) -> None:
        self.processes = transport.processes if transport else 1
        self.transport = transport if self.processes > 1 else None
        assert workers % self.processes == 0, "every process holds equally many workers"
        w = workers // self.processes
        first = transport.rank * w if transport else 0
        self.workers = workers
        self.local = range(first, first + w)
        self.workers_per_host = workers_per_host  # None: virtual workers have no hosts
        self.clock: Clock = clock or NoClock()
        self.meter = meter or Meter.of_workers(w)
        self._checksum = checksum
        self._workers_per_row = workers_per_row
        self._listener = listener
        self._split: dict[int, tuple[Transport, Transport]] = {}  # cached: new groups take long

    def mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean over all workers, `[w, ...] -> [1, ...]`.

        Half-precision values are divided before they are added, so that no sum overflows.
        """
        if tensors[0].dtype in HALVES:
            return _parts_of_row(
                self._reduce(torch._foreach_div(list(tensors), self.workers), "sum"), tensors
            )
        return _parts_of_row(self._reduce(tensors, "sum").div_(self.workers), tensors)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum of integers over all workers, `[w, ...] -> [1, ...]`.

        The caller chooses a type in which the sum of W integers fits.
        """
        assert not any(t.is_floating_point() for t in tensors)
        return _parts_of_row(self._reduce(tensors, "sum"), tensors)

    def max(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the maximum over all workers, `[w, ...] -> [1, ...]`; NaN where any has NaN."""
        return _parts_of_row(self._reduce(tensors, "max"), tensors)

    def min(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the minimum over all workers, `[w, ...] -> [1, ...]`; NaN where any has NaN."""
        return _parts_of_row(self._reduce(tensors, "min"), tensors)

    def bitwise_and(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the bitwise and over all workers, `[w, ...] -> [1, ...]`."""
        if tensors[0].is_cuda:  # NCCL has no bitwise reductions
            return [reduce_rows(rows, "and") for rows in self.gather(tensors)]
        return _parts_of_row(self._reduce(tensors, "and"), tensors)

    def gather(
        self, tensors: Sequence[Tensor], lengths: Lengths | None = None, *, bare: bool = False
    ) -> list[Tensor]:
        """Return the rows of all workers, `[w, ...] -> [W, ...]`; all types travel in one message.

        If `lengths[i]` (`[w]`) is given, tensor i is ragged: only the first `lengths[i][row]`
        values of each row are sent, and the result is zero-padded to `[W, longest]`. A `bare` one
        is a part of another collective, which has the checksums.
        """
        lengths = lengths or [None] * len(tensors)
        if not bare:
            self._listener("all_gather", tensors, lengths)
        if self._checksum and not bare:
            # Each worker of a node sends its slice with a checksum of its own.
            own_sums = row_sums(tensors, lengths).repeat(1, self._workers_per_row)
            *everyone, sums = self.gather([*tensors, own_sums], [*lengths, None], bare=True)
            refuse_altered("all_gather", row_sums(everyone), sums[:, :SUM_BYTES], self.local.start)
            return everyone
        if any(n is not None for n in lengths):
            return self._gather_ragged(tensors, lengths)
        self._count_gather(row_bits(tensors))
        if not self.transport:
            return list(tensors)
        message, parts = to_bytes(tensors)
        with self.clock.exchange():
            rows = self.transport.all_gather(message)
        return [from_bytes(rows, part) for part in parts]

    def transpose(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the all-to-all, `[w, W, ...] -> [w, W, ...]`; all types travel in one message.

        Row i of a result holds what each worker had for worker i.
        """
        self._listener("all_to_all", tensors, [None] * len(tensors))
        if not self._checksum:
            return self._transpose(tensors)
        *arrived, sums = self._transpose([*tensors, pair_sums(tensors)])
        for arrived_sums, sent_sums in zip(pair_sums(arrived), sums, strict=True):
            refuse_altered("all_to_all", arrived_sums, sent_sums, self.local.start)
        return arrived

    def pass_on(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return what the next worker in the ring has, `[w, ...] -> [w, ...]`: one hop.

        Worker i passes its row on to worker i - 1, and the first to the last, as in gloo's ring.
        All types travel in one message.
        """
        self._listener("ring_hop", tensors, [None] * len(tensors))
        if not self._checksum:
            return self._pass_on(tensors)
        *arrived, sums = self._pass_on([*tensors, row_sums(tensors)])
        refuse_altered("ring_hop", row_sums(arrived), sums, self.local.start)
        return arrived

    def split(self, size: int) -> tuple[list[Comm], Comm]:
        """Return the Comms inside and between nodes of `size` consecutive workers.

        There is one Comm inside each node that has workers in this process, and one between the
        nodes, whose rows are these nodes. All count on this Comm's meter. All ranks must call it.
        """
        w = len(self.local)
        held = min(size, w)  # how many of a node's workers are here
        nodes = [range(i, i + held) for i in range(0, w, held)]
        within = [
            self.meter.part("inside", [range(k, k + 1) for k in node])
            if size > 1
            else Meter.of_workers(1)  # unused: a single worker in its node sends nothing
            for node in nodes
        ]
        among = self.meter.part("between", nodes)
        inside, between = (None, self.transport) if w >= size else self._split_transport(size // w)
        part = partial(Comm, clock=self.clock, checksum=self._checksum)
        nodes_here = [part(size, inside, meter=meter) for meter in within]
        rows = self.workers // size
        return nodes_here, part(rows, between, meter=among, workers_per_row=held)

    def count_gather(self, bits: int) -> None:
        """Count a gather of rows of `bits` bits each, and of their checksums."""
        self._count_gather(bits + 8 * SUM_BYTES * self._checksum)

    def _split_transport(self, size: int) -> tuple[Transport, Transport]:
        assert self.transport is not None, "one process holds whole nodes"
        if size not in self._split:
            self._split[size] = self.transport.split(size)
        return self._split[size]

    def _reduce(self, tensors: Sequence[Tensor], op: Reduction) -> Tensor:
        """Return the reduction of the concatenated tensors, `[w, ...] -> [1, n]`."""
        self._listener(f"all_reduce {op}", tensors, [None] * len(tensors))
        assert len({t.dtype for t in tensors}) == 1, "one message holds one type"
        w = tensors[0].shape[0]
        rows = [t.reshape(w, -1) for t in tensors]
        # gloo and NCCL lose a NaN that meets a number; as an integer of the same order it is kept.
        as_integers = op in ("max", "min") and tensors[0].is_floating_point()
        if as_integers:
            rows = [float_to_ordered(x, nan_is_largest=op == "max") for x in rows]
        if w > 1 and rows[0].is_cuda:  # so that one kernel adds all tensors' rows
            rows = [torch.cat(rows, dim=1)]
        in_ring = w > 1 and op == "sum" and rows[0].dtype in HALVES
        flat = torch.cat(rows if w == 1 or in_ring else [reduce_rows(x, op) for x in rows], dim=1)
        bits = row_bits([flat[:1]])
        self.meter.count_equal("all_reduce", self.workers, bits, bits)
        if in_ring:
            flat = self._sum_in_ring(flat)
        elif self.transport:
            with self.clock.exchange():
                self.transport.all_reduce(flat, op)
        flat = ordered_to_float(flat) if as_integers else flat
        if self._checksum:
            sums = row_sums([flat]).expand(len(self.local), -1)
            refuse_different(op, *self.gather([sums], bare=True))
        return flat

    def _sum_in_ring(self, rows: Tensor) -> Tensor:
        """Return the sum of all workers' half-precision rows as real workers would add them."""
        if self.transport:
            message, (part,) = to_bytes([rows])
            with self.clock.exchange():
                rows = from_bytes(self.transport.all_gather(message), part)
        return sum_in_ring(rows)

    def _count_gather(self, bits: int) -> None:
        self.meter.count_equal("all_gather", self.workers, bits, bits * (self.workers - 1))

    def _gather_ragged(self, tensors: Sequence[Tensor], lengths: Lengths) -> list[Tensor]:
        full = [torch.full((len(t),), t[0].numel(), device=t.device) for t in tensors]
        counts = [n if n is not None else whole for n, whole in zip(lengths, full, strict=True)]
        # The lengths are sent and counted, too.
        local_counts = torch.stack(counts, dim=1).to(torch.int32)
        all_counts = self.gather([local_counts])[0].long().cpu()
        item_bytes = torch.tensor([t.element_size() for t in tensors], device="cpu")
        row_bytes = (all_counts * item_bytes).sum(1).tolist()
        sent = [8 * row_bytes[k] for k in self.local]
        received = [8 * sum(row_bytes) - bits for bits in sent]
        self.meter.count("ragged_gather", self.workers, sent, received)
        rows = []
        for i, k in enumerate(self.local):
            true = zip(tensors, all_counts[k].tolist(), strict=True)
            rows.append(torch.cat([as_bytes(t[i].flatten()[:n]) for t, n in true]))
        if self.transport:
            with self.clock.exchange():
                rows = self.transport.exchange_rows(rows, row_bytes)
        starts = (all_counts * item_bytes).cumsum(1) - all_counts * item_bytes
        gathered = []
        for i, (t, n) in enumerate(zip(tensors, lengths, strict=True)):
            padded = pad_rows(rows, starts[:, i], all_counts[:, i], t.dtype)
            gathered.append(padded.view(-1, *t.shape[1:]) if n is None else padded)
        return gathered

    def _pass_on(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        bits = row_bits(tensors)
        self.meter.count_equal("ring_hop", self.workers, bits, bits)
        arrived = [t.roll(-1, 0) for t in tensors]
        if not self.transport:
            return arrived
        message, parts = to_bytes([t[:1] for t in tensors])
        with self.clock.exchange():
            message = self.transport.pass_on(message)
        for t, part in zip(arrived, parts, strict=True):
            t[-1:] = from_bytes(message, part)
        return arrived

    def _transpose(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        bits = row_bits(tensors) // self.workers * (self.workers - 1)
        self.meter.count_equal("all_to_all", self.workers, bits, bits)
        if not self.transport:
            return [t.transpose(0, 1).contiguous() for t in tensors]
        w = len(self.local)
        message, parts = to_bytes([t.flatten(0, 1) for t in tensors])
        # [processes, w here, w there, bytes]
        by_process = message.view(w, self.processes, w, -1).transpose(0, 1).contiguous()
        with self.clock.exchange():
            arrived = self.transport.all_to_all(by_process)
        rows = arrived.permute(2, 0, 1, 3).flatten(0, 2)  # [w W, bytes], by receiver and sender
        return [from_bytes(rows, part).unflatten(0, (w, self.workers)) for part in parts]


def sum_in_ring(rows: Tensor) -> Tensor:
    """Return the sum `[1, n]` of rows `[W, n]`, rounded to their type at every hop of gloo's ring.

    Chunk c begins at worker c - 1 and goes down to worker c. PyTorch's own sum of rows is rounded
    once, so that its error falls with W where that of a ring grows.
    """
    workers, n = rows.shape
    size = _ring_chunk(n, workers, rows.element_size())
    chunks = F.pad(rows, (0, workers * size - n)).view(workers, workers, size)
    place = torch.arange(workers, device=rows.device)
    total = chunks[(place - 1) % workers, place]
    for hop in range(2, workers + 1):
        total = total + chunks[(place - hop) % workers, place]
    return total.view(1, -1)[:, :n]


def _ring_chunk(n: int, workers: int, item_bytes: int) -> int:
    """Return how many values gloo makes a chunk of, one per worker: two segments or more."""
    segments = max(-(-n * item_bytes // _SEGMENT_BYTES), 2 * workers)
    per_worker = -(-segments // workers)
    return per_worker * -(-n // (per_worker * workers))


def reduce_rows(x: Tensor, op: Reduction) -> Tensor:
    if op == "sum":
        return x.sum(0, keepdim=True, dtype=x.dtype)
    if op == "and":
        rows = x[:1].clone()
        for row in x[1:]:
            rows &= row
        return rows
    return x.amax(0, keepdim=True) if op == "max" else x.amin(0, keepdim=True)


def _parts_of_row(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that are concatenated in `flat` as views, `[1, ...]` each."""
    w = like[0].shape[0]
    parts = flat.split([t.numel() // w for t in like], dim=1)
    return [part.view(1, *t.shape[1:]) for part, t in zip(parts, like, strict=True)]
