"""Two levels of communication: among the workers of a node, and among the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.messages import from_bytes, to_bytes


@dataclass(frozen=True)
class Nodes:
    """Nodes of `size` consecutive workers, of which those in `local` have workers in this process.

    Every process holds whole nodes, or every node consists of whole processes.
    """

    size: int
    inside: list[Comm]  # one per node of `local`
    between: Comm

    @staticmethod
    def of(comm: Comm, size: int | None) -> Nodes:
        """Return nodes of `size` workers of `comm`; without a size, the nodes are its hosts."""
        settled = node_size(size, comm.workers, len(comm.local), comm.workers_per_host)
        return Nodes(settled, *comm.split(settled))

    @property
    def count(self) -> int:
        return self.between.workers

    @property
    def local(self) -> range:
        return self.between.local

    def mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean of each node's workers, `[w, ...] -> [nodes here, ...]`."""
        rows = (t.split(len(self.inside[0].local)) for t in tensors)
        by_node = [inside.mean(part) for inside, *part in zip(self.inside, *rows, strict=True)]
        return [torch.cat(means) for means in zip(*by_node, strict=True)]

    def gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the rows of all nodes, `[nodes here, ...] -> [nodes, ...]`, one message each.

        All workers of a node have its rows, which may be of any types.

        Each worker sends its own slice of the message to its peers in the other nodes, and what it
        got from them to the others of its node: between two nodes every bit travels once, over as
        many links as a node has workers.
        """
        message, parts = to_bytes(tensors)
        size = -(-message.shape[1] // self.size)  # size of a slice in bytes
        padded = F.pad(message, (0, self.size * size - message.shape[1]))
        slices = self.inside[0].local
        arrived = self.between.gather([padded[:, slices.start * size : slices.stop * size]])[0]
        everyone = self._complete(arrived, padded, size)
        return [from_bytes(everyone, part) for part in parts]

    def _complete(self, arrived: Tensor, message: Tensor, size: int) -> Tensor:
        """Return the full messages of all nodes, of which `arrived` has `[nodes, slices here]`."""
        if len(self.inside[0].local) == self.size:
            for inside in self.inside:
                inside.count_gather(8 * size * (self.count - 1))
            return arrived
        (inside,), (k,) = self.inside, self.local
        others = torch.cat([arrived[:k], arrived[k + 1 :]]).unflatten(1, (-1, size))
        rows = inside.gather([others.transpose(0, 1)])[0]  # [size, other nodes, slice]
        messages = rows.transpose(0, 1).flatten(1)
        return torch.cat([messages[:k], message, messages[k:]])


def node_size(asked: int | None, workers: int, rows: int, host: int | None) -> int:
    """Return the number of workers per node, where a process has `rows` of them and a host `host`.

    Raises ValueError if `asked`, or without it `host`, does not divide the workers into such nodes.
    """
    size = asked or host
    smaller = max(
        (n for n in range(1, workers) if workers % n == 0 and (n % rows == 0 or rows % n == 0)),
        default=1,
    )
    if size is None:
        raise ValueError(
            "exchange=hierarchical: it is not known which workers share a host, as for virtual "
            f"workers; type workers_per_node={smaller}"
        )
    if workers % size:
        raise ValueError(
            f"workers_per_node={size} cannot share {workers} workers evenly; type "
            f"workers_per_node={smaller}"
        )
    if size % rows and rows % size:
        raise ValueError(
            f"workers_per_node={size}: some process would hold part of two nodes, as each has "
            f"{rows} workers; type workers_per_node={smaller}"
        )
    if size == workers:
        raise ValueError(
            f"workers_per_node={asked or 'null'}: all workers would be one node, and nothing would "
            "be compressed; type exchange=gather, or smaller nodes, as in "
            f"workers_per_node={smaller}"
        )
    return size
