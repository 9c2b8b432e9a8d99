"""Transports, which move bytes and sums between processes, whatever these mean."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.core.comm import chunks
from gcbench.core.comm.groups import subgroup
from gcbench.core.comm.network import Link, Network

Reduction = Literal["sum", "max", "min", "and"]
# PyTorch 2.14 warns of the name that earlier versions have.
all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Transport(Protocol):
    """A connection of `processes` processes, of which this is `rank`; all make the same calls."""

    rank: int
    processes: int

    def all_reduce(self, flat: Tensor, op: Reduction) -> None:
        """Replace `flat` by its reduction over all processes."""

    def all_gather(self, message: Tensor) -> Tensor:
        """Return the messages of all processes, `[w, bytes] -> [processes * w, bytes]`."""

    def all_to_all(self, by_process: Tensor) -> Tensor:
        """Return what each process had for this one; slice p goes to and comes from process p."""

    def pass_on(self, message: Tensor) -> Tensor:
        """Send a message to the process before this one in a ring; return that of the next one."""

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        """Return the rows of all processes, whose sizes are `row_bytes`; this one has `rows`."""

    def split(self, size: int) -> tuple[Transport, Transport]:
        """Return two transports: one within this process's node, one among its peers in all nodes.

        A node is `size` consecutive processes; peers have the same place in their nodes.
        """


AnyGroup = TypeVar("AnyGroup", bound="_GroupTransport")


class _GroupTransport:
    """The common part of transports over a process group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = group.rank()
        self.processes = group.size()

    def all_reduce(self, flat: Tensor, op: Reduction) -> None:
        ops = {
            "sum": dist.ReduceOp.SUM,
            "max": dist.ReduceOp.MAX,
            "min": dist.ReduceOp.MIN,
            "and": dist.ReduceOp.BAND,
        }
        dist.all_reduce(flat, ops[op], group=self.group)

    def split(self: AnyGroup, size: int) -> tuple[AnyGroup, AnyGroup]:
        """Return a transport within this process's node of `size`, and one among the nodes."""
        ranks = dist.get_process_group_ranks(self.group)
        nodes = [ranks[i : i + size] for i in range(0, len(ranks), size)]
        places = [list(same) for same in zip(*nodes, strict=True)]
        return self._subgroup(nodes), self._subgroup(places)

    def _subgroup(self: AnyGroup, ranks: list[list[int]]) -> AnyGroup:
        return type(self)(subgroup(self.group, ranks))

    def _by_process(self, rows: list[Tensor], row_bytes: list[int]) -> list[list[Tensor]]:
        """Return the rows of each process: those of this one, and buffers for those of others."""
        w = len(rows)
        sizes = [row_bytes[k : k + w] for k in range(0, len(row_bytes), w)]
        by_process = [[rows[0].new_empty(n) for n in of_process] for of_process in sizes]
        by_process[self.rank] = rows
        return by_process


class GlooTransport(_GroupTransport):
    """A gloo transport that sends gathers and all-to-alls itself.

    gloo's own leave up to a third of a slow link idle. Messages go through host memory, and results
    return to the device of the input.
    """

    def all_gather(self, message: Tensor) -> Tensor:
        rows, size = message.shape
        flat = message.cpu().flatten()
        everyone = flat.new_empty(self.processes, len(flat))
        everyone[self.rank] = flat
        chunks.gather(self.group, [[row] for row in everyone])
        return everyone.view(self.processes * rows, size).to(message.device)

    def all_to_all(self, by_process: Tensor) -> Tensor:
        leaving = by_process.cpu().flatten(1)
        arrived = torch.empty_like(leaving)
        arrived[self.rank] = leaving[self.rank]
        chunks.exchange(self.group, list(leaving), list(arrived))
        return arrived.view_as(by_process).to(by_process.device)

    def pass_on(self, message: Tensor) -> Tensor:
        leaving = message.cpu()
        arriving = torch.empty_like(leaving)
        chunks.pass_on(self.group, leaving, arriving)
        return arriving.to(message.device)

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        by_process = self._by_process([row.cpu() for row in rows], row_bytes)
        chunks.gather(self.group, by_process)
        return [row.to(rows[0].device) for of_process in by_process for row in of_process]


class NcclTransport(_GroupTransport):
    """A transport that leaves every exchange to PyTorch, as with NCCL a call is one kernel."""

    def all_gather(self, message: Tensor) -> Tensor:
        rows, size = message.shape
        everyone = message.new_empty(self.processes * rows, size)
        all_gather_flat(everyone, message, group=self.group)
        return everyone

    def all_to_all(self, by_process: Tensor) -> Tensor:
        arrived = torch.empty_like(by_process)
        dist.all_to_all_single(arrived, by_process, group=self.group)
        return arrived

    def pass_on(self, message: Tensor) -> Tensor:
        arrived, peers = torch.empty_like(message), self.processes
        operations = [
            dist.P2POp(dist.irecv, arrived, group=self.group, group_peer=(self.rank + 1) % peers),
            dist.P2POp(dist.isend, message, group=self.group, group_peer=(self.rank - 1) % peers),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return arrived

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        by_process = self._by_process(rows, row_bytes)
        peers = [p for p in range(self.processes) if p != self.rank]
        arriving = [(dist.irecv, row, p) for p in peers for row in by_process[p]]
        leaving = [(dist.isend, row, p) for p in peers for row in rows]
        operations = [
            dist.P2POp(call, row, group=self.group, group_peer=p)
            for call, row, p in [*arriving, *leaving]
            if row.numel()  # empty rows are neither sent nor received
        ]
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        return [row for of_process in by_process for row in of_process]


class MirrorTransport:
    """A transport without other processes, as if all of them sent what this one sends.

    A method runs on it as it does between processes, with tensors of the same shapes.
    """

    def __init__(self, rank: int, processes: int) -> None:
        self.rank = rank
        self.processes = processes

    def all_reduce(self, flat: Tensor, op: Reduction) -> None:
        pass

    def all_gather(self, message: Tensor) -> Tensor:
        return message.repeat(self.processes, 1)

    def all_to_all(self, by_process: Tensor) -> Tensor:
        return by_process[self.rank].expand_as(by_process).clone()

    def pass_on(self, message: Tensor) -> Tensor:
        return message

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        return rows * self.processes

    def split(self, size: int) -> tuple[Transport, Transport]:
        node, place = divmod(self.rank, size)
        return MirrorTransport(place, size), MirrorTransport(node, self.processes // size)


def transport_of(group: dist.ProcessGroup, device: torch.device) -> Transport:
    """Return a transport of tensors on `device` over an existing process group."""
    nccl = device.type == "cuda" and "cuda:nccl" in dist.get_backend_config(group)
    return NcclTransport(group) if nccl else GlooTransport(group)


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
