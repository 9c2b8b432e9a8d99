"""Workers spread over the processes of `torch.distributed`: one row each, or several virtual ones in each process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.comm import chunks
from gcbench.comm.base import Clock, Comm, Reduction
from gcbench.comm.emulation import lasting
from gcbench.comm.meter import Meter
from gcbench.comm.network import Cost, Link, Network
from gcbench.comm.virtual import node_meter, whole_nodes


class ProcessGroupComm(Comm):
    """Process p holds the workers `p * w .. (p + 1) * w - 1`, so gathered rows come in worker order.

    gloo's own gathers and all-to-alls leave up to a third of a slow link idle, so that there we send the messages ourselves.
    With `emulated`, every process is a host with such a link. `timeout` is for the groups that `split` makes of `group`.
    """

    def __init__(
        self,
        workers: int,
        group: dist.ProcessGroup,
        clock: Clock | None = None,
        meter: Meter | None = None,
        workers_per_host: int | None = None,
        emulated: Link | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        w = workers // group.size()
        super().__init__(workers, range(group.rank() * w, (group.rank() + 1) * w), clock, meter)
        self.workers_per_host = workers_per_host
        self._group = group
        self._gloo = dist.get_backend(group) == "gloo"
        self._emulated = emulated
        self._timeout = timeout
        self._groups: dict[int, tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}

    def split(self, size: int) -> tuple[list[Comm], Comm]:
        w, meter = len(self.local), node_meter(self, size)
        if w >= size:
            return whole_nodes(self, size), self._among(self.workers // size, self._group, meter)
        if size not in self._groups:
            self._groups[size] = self._node_and_peers(size // w)
        node, peers = self._groups[size]
        rows = self.meter.part("inside", [range(k, k + 1) for k in range(w)])
        return [self._among(size, node, rows)], self._among(self.workers // size, peers, meter)

    def _among(self, workers: int, group: dist.ProcessGroup, meter: Meter) -> ProcessGroupComm:
        return ProcessGroupComm(workers, group, self.clock, meter, emulated=self._emulated)

    def _node_and_peers(self, size: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """The groups of this process: of the `size` in its node, and of those that have its place in the other nodes."""
        ranks = dist.get_process_group_ranks(self._group)
        nodes = [ranks[i : i + size] for i in range(0, len(ranks), size)]
        node, _ = dist.new_subgroups_by_enumeration(nodes, timeout=self._timeout)
        places = [list(same) for same in zip(*nodes, strict=True)]
        peers, _ = dist.new_subgroups_by_enumeration(places, timeout=self._timeout)
        return cast(dist.ProcessGroup, node), cast(dist.ProcessGroup, peers)

    def _all_reduce(self, flat: Tensor, op: Reduction) -> None:
        ops = {
            "sum": dist.ReduceOp.SUM,
            "max": dist.ReduceOp.MAX,
            "min": dist.ReduceOp.MIN,
            "and": dist.ReduceOp.BAND,
        }
        with self._lasting(flat.device, lambda network: network.cost("all_reduce", 8 * flat.nbytes)):
            dist.all_reduce(flat, ops[op], group=self._group)

    def _all_gather(self, message: Tensor) -> Tensor:
        rows, size = message.shape
        with self._lasting(message.device, lambda network: network.cost("all_gather", 8 * message.nbytes)):
            if self._gloo:
                own = message.cpu().flatten()
                everyone = own.new_empty(self.processes, len(own))
                everyone[self._group.rank()] = own
                chunks.gather(self._group, [[row] for row in everyone])
                return everyone.view(self.processes * rows, size).to(message.device)
            everyone = message.new_empty(self.processes * rows, size)
            dist.all_gather_into_tensor(everyone, message, group=self._group)
            return everyone

    def _all_to_all(self, by_process: Tensor) -> Tensor:
        leaving = 8 * by_process[1:].nbytes
        with self._lasting(by_process.device, lambda network: network.cost("all_to_all", leaving)):
            if self._gloo:
                parts = by_process.cpu().flatten(1)
                arrived = torch.empty_like(parts)
                arrived[self._group.rank()] = parts[self._group.rank()]
                chunks.exchange(self._group, list(parts), list(arrived))
                return arrived.view_as(by_process).to(by_process.device)
            arrived = torch.empty_like(by_process)
            dist.all_to_all_single(arrived, by_process, group=self._group)
            return arrived

    def _exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        w, device = len(self.local), rows[0].device
        own = [row.cpu() for row in rows] if self._gloo else rows
        everyone = [own[k - self.local.start] if k in self.local else own[0].new_empty(n) for k, n in enumerate(row_bytes)]
        by_process = [everyone[k : k + w] for k in range(0, self.workers, w)]
        sizes = [8 * sum(row_bytes[k : k + w]) for k in range(0, self.workers, w)]
        with self._lasting(device, lambda network: network.ragged_cost(sizes)):
            if self._gloo:
                chunks.gather(self._group, by_process)
            else:
                self._exchange_in_one_call(own, by_process)
        return [row.to(device) for row in everyone]

    def _exchange_in_one_call(self, own: list[Tensor], by_process: list[list[Tensor]]) -> None:
        """As NCCL wants it."""
        peers = [p for p in range(self.processes) if p != self._group.rank()]
        receives = [
            dist.P2POp(dist.irecv, row, group=self._group, group_peer=p) for p in peers for row in by_process[p] if row.numel()
        ]
        sends = [dist.P2POp(dist.isend, row, group=self._group, group_peer=p) for p in peers for row in own if row.numel()]
        if receives or sends:
            for work in dist.batch_isend_irecv(receives + sends):
                work.wait()

    def _lasting(self, device: torch.device, cost: Callable[[Network], Cost]) -> AbstractContextManager[None]:
        if self._emulated is None:
            return nullcontext()
        return lasting(cost(Network(self.processes, 1, self._emulated, self._emulated)).seconds, self._group, device)


class ProcessGroupControl:
    """Agreement over a gloo group of its own, which neither mixes with gradients nor waits for a GPU.

    Values travel as JSON: whoever gets at a socket of the run can disturb it, but has nothing here that runs code.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None
        self.waits = False  # for other processes, at this moment

    def gather(self, value: Any) -> list[Any]:
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [int(size) for size in self.gather_tensors(torch.tensor([len(own)]))]
        padded = own.new_zeros(max(sizes))
        padded[: len(own)] = own
        texts = self.gather_tensors(padded)
        return [json.loads(text[:size].numpy().tobytes()) for text, size in zip(texts, sizes, strict=True)]

    def gather_tensors(self, x: Tensor) -> list[Tensor]:
        everyone = [torch.empty_like(x) for _ in range(self._group.size())]
        with self._waiting():
            dist.all_gather(everyone, x, group=self._group)
        return everyone

    def sum(self, x: Tensor) -> Tensor:
        total = x.to("cpu", copy=True)  # not in place in the caller's
        with self._waiting():
            dist.all_reduce(total, group=self._group)
        return total.to(x.device)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for t in tensors:
            host = t.detach().cpu().contiguous()
            with self._waiting():
                dist.broadcast(host, group_src=0, group=self._group)
            t.data.copy_(host)

    def propose(self, urgency: int) -> None:
        self._flag.fill_(urgency)
        self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def agreed(self) -> int:
        assert self._work is not None, "propose comes first"
        with self._waiting():
            self._work.wait()
        return int(self._flag.item())

    def barrier(self) -> None:
        with self._waiting():
            dist.barrier(group=self._group)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.waits = True
        yield
        self.waits = False  # where it fails, it has waited in vain until then
