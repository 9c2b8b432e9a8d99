"""Transports, which move bytes and sums between processes, and process groups of our own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

# Several chunks in flight hide the handshake with which gloo begins each of them; smaller chunks
# take longer.
CHUNK_BYTES = 1024 * 1024
# A tag of our own, as a user's messages between the same processes have the default, 0.
TAG = 0x6763

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
        _gather(self.group, [[row] for row in everyone])
        return everyone.view(self.processes * rows, size).to(message.device)

    def all_to_all(self, by_process: Tensor) -> Tensor:
        leaving = by_process.cpu().flatten(1)
        arrived = torch.empty_like(leaving)
        arrived[self.rank] = leaving[self.rank]
        _exchange(self.group, list(leaving), list(arrived))
        return arrived.view_as(by_process).to(by_process.device)

    def pass_on(self, message: Tensor) -> Tensor:
        leaving = message.cpu()
        arriving = torch.empty_like(leaving)
        _pass_on(self.group, leaving, arriving)
        return arriving.to(message.device)

    def exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        by_process = self._by_process([row.cpu() for row in rows], row_bytes)
        _gather(self.group, by_process)
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


# Messages between processes of a gloo group, in chunks: 1-d uint8 tensors in host memory, whose
# sizes all processes know.


def _gather(group: dist.ProcessGroup, messages: Sequence[Sequence[Tensor]]) -> None:
    """Fill `messages[p]` with what process p has there.

    The algorithm is a ring, in which each chunk is passed on when it arrives. All receives are
    posted before the first send.
    """
    size, me = group.size(), group.rank()
    left, right = (me - 1) % size, (me + 1) % size
    arriving = [
        (owner, chunk, _receive(group, chunk, left))
        for owner in ((me - i) % size for i in range(1, size))
        for chunk in _chunks(messages[owner])
    ]
    sends = [_send(group, chunk, right) for chunk in _chunks(messages[me])]
    for owner, chunk, receive in arriving:
        receive.wait()
        if owner != right:
            sends.append(_send(group, chunk, right))
    for send in sends:
        send.wait()


def _exchange(
    group: dist.ProcessGroup, leaving: Sequence[Tensor], arriving: Sequence[Tensor]
) -> None:
    """Send `leaving[p]` to process p and fill `arriving[p]` from it.

    A process's message to itself is not copied. In round i every process sends to its i-th right
    neighbor and receives from its i-th left neighbor, so that messages seldom share a link; a round
    begins while the last chunk of the previous round arrives. All receives are posted before the
    first send.
    """
    size, me = group.size(), group.rank()
    lefts, rights = ([(me + sign * i) % size for i in range(1, size)] for sign in (-1, 1))
    receives = [
        [_receive(group, chunk, left) for chunk in _chunks([arriving[left]])] for left in lefts
    ]
    unfinished = []
    for right, of_round in zip(rights, receives, strict=True):
        unfinished += [_send(group, chunk, right) for chunk in _chunks([leaving[right]])]
        unfinished += of_round[-1:]
        for receive in of_round[:-1]:
            receive.wait()
    for work in unfinished:
        work.wait()


def _pass_on(group: dist.ProcessGroup, leaving: Tensor, arriving: Tensor) -> None:
    """Send a message to the process before this one in a ring; fill `arriving` from the next."""
    size, me = group.size(), group.rank()
    work = [_receive(group, chunk, (me + 1) % size) for chunk in _chunks([arriving])]
    work += [_send(group, chunk, (me - 1) % size) for chunk in _chunks([leaving])]
    for each in work:
        each.wait()


def _chunks(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [chunk for t in tensors if t.numel() for chunk in t.split(CHUNK_BYTES)]


def _receive(group: dist.ProcessGroup, chunk: Tensor, peer: int) -> dist.Work:
    work = dist.irecv(chunk, group=group, tag=TAG, group_src=peer)
    assert work is not None
    return work


def _send(group: dist.ProcessGroup, chunk: Tensor, peer: int) -> dist.Work:
    work = dist.isend(chunk, group=group, tag=TAG, group_dst=peer)
    assert work is not None
    return work


def group_beside(
    group: dist.ProcessGroup, backend: str | None = None, timeout: timedelta | None = None
) -> dist.ProcessGroup:
    """Return a new group of the same processes, which nothing else uses; all of them call this."""
    beside = dist.new_group(
        dist.get_process_group_ranks(group),
        timeout=timeout or timeout_of(group),
        backend=backend or dist.get_backend_config(group),
        use_local_synchronization=True,
    )
    return cast(dist.ProcessGroup, beside)


def subgroup(group: dist.ProcessGroup, parts: Sequence[Sequence[int]]) -> dist.ProcessGroup:
    """Return a new group of this process's part of the ranks; all processes call this."""
    ranks = [[*part] for part in parts]
    part, _ = dist.new_subgroups_by_enumeration(ranks, timeout=timeout_of(group))
    return cast(dist.ProcessGroup, part)


def workers_per_host(group: dist.ProcessGroup) -> int | None:
    """Return how many processes of a group each host has; None if torchrun did not say."""
    on_host = os.environ.get("LOCAL_WORLD_SIZE")  # set by torchrun
    return share_of_hosts(dist.get_process_group_ranks(group), int(on_host)) if on_host else None


def share_of_hosts(ranks: Sequence[int], processes: int) -> int | None:
    """Return how many of a group's `ranks` are on each host, which has `processes` in all.

    None if hosts differ, as they can where DDP has a process group of its own.
    """
    sizes = set(Counter(rank // processes for rank in ranks).values())
    return sizes.pop() if len(sizes) == 1 else None


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Return how long a group waits, which `dist.new_group` would not take over."""
    timeout: timedelta = group._get_backend(group._device_types[0]).options._timeout
    return timeout
