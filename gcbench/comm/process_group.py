"""Workers spread over the processes of `torch.distributed`: one row each, or several virtual ones in each process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.comm.base import Clock, Comm, Reduction
from gcbench.comm.meter import Meter
from gcbench.comm.virtual import node_meter, whole_nodes


class ProcessGroupComm(Comm):
    """Process p holds the workers `p * w .. (p + 1) * w - 1`, so gathered rows come in worker order."""

    def __init__(
        self,
        workers: int,
        group: dist.ProcessGroup,
        clock: Clock | None = None,
        meter: Meter | None = None,
        workers_per_host: int | None = None,
    ) -> None:
        w = workers // group.size()
        super().__init__(workers, range(group.rank() * w, (group.rank() + 1) * w), clock, meter)
        self.workers_per_host = workers_per_host
        self._group = group
        self._groups: dict[int, tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}

    def split(self, size: int) -> tuple[list[Comm], Comm]:
        w, meter = len(self.local), node_meter(self, size)
        if w >= size:
            return whole_nodes(self, size), ProcessGroupComm(self.workers // size, self._group, self.clock, meter)
        if size not in self._groups:
            self._groups[size] = self._node_and_peers(size // w)
        node, peers = self._groups[size]
        rows = self.meter.part("inside", [range(k, k + 1) for k in range(w)])
        return [ProcessGroupComm(size, node, self.clock, rows)], ProcessGroupComm(
            self.workers // size, peers, self.clock, meter
        )

    def _node_and_peers(self, size: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """The groups of this process: of the `size` in its node, and of those that have its place in the other nodes."""
        ranks = dist.get_process_group_ranks(self._group)
        nodes = [ranks[i : i + size] for i in range(0, len(ranks), size)]
        node, _ = dist.new_subgroups_by_enumeration(nodes)
        peers, _ = dist.new_subgroups_by_enumeration([list(places) for places in zip(*nodes, strict=True)])
        return cast(dist.ProcessGroup, node), cast(dist.ProcessGroup, peers)

    def _all_reduce(self, flat: Tensor, op: Reduction) -> None:
        ops = {
            "sum": dist.ReduceOp.SUM,
            "max": dist.ReduceOp.MAX,
            "min": dist.ReduceOp.MIN,
            "and": dist.ReduceOp.BAND,
        }
        dist.all_reduce(flat, ops[op], group=self._group)

    def _all_gather(self, message: Tensor) -> Tensor:
        everyone = message.new_empty(self.processes * message.shape[0], message.shape[1])
        dist.all_gather_into_tensor(everyone, message, group=self._group)
        return everyone

    def _all_to_all(self, by_process: Tensor) -> Tensor:
        arrived = torch.empty_like(by_process)
        dist.all_to_all_single(arrived, by_process, group=self._group)
        return arrived

    def _exchange_rows(self, rows: list[Tensor], row_bytes: list[int]) -> list[Tensor]:
        everyone = [
            rows[k - self.local.start] if k in self.local else rows[0].new_empty(size) for k, size in enumerate(row_bytes)
        ]
        w, me = len(self.local), self._group.rank()
        receives = [
            dist.P2POp(dist.irecv, everyone[k], group=self._group, group_peer=k // w)
            for k in range(self.workers)
            if k not in self.local and row_bytes[k]
        ]
        sends = [
            dist.P2POp(dist.isend, row, group=self._group, group_peer=peer)
            for peer in range(self.processes)
            for row in rows
            if peer != me and row.numel()
        ]
        if receives or sends:
            for work in dist.batch_isend_irecv(receives + sends):
                work.wait()
        return everyone


class ProcessGroupControl:
    """Agreement over a gloo group of its own, which neither mixes with gradients nor waits for a GPU."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self._group.size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def sum(self, x: Tensor) -> Tensor:
        total = x.to("cpu", copy=True)  # not in place in the caller's
        dist.all_reduce(total, group=self._group)
        return total.to(x.device)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for t in tensors:
            host = t.detach().cpu().contiguous()
            dist.broadcast(host, group_src=0, group=self._group)
            t.data.copy_(host)

    def propose(self, urgency: int) -> None:
        self._flag.fill_(urgency)
        self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def agreed(self) -> int:
        assert self._work is not None, "propose comes first"
        self._work.wait()
        return int(self._flag.item())

    def barrier(self) -> None:
        dist.barrier(group=self._group)
