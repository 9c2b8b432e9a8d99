"""Whether exchanges run beside the backward pass, and plain means, which begin with each bucket."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.meter import Meter, row_bits
from gcbench.core.comm.nodes import Nodes
from gcbench.core.compressor import Compressor, State
from gcbench.core.errors import ConfigError
from gcbench.core.exchange.hierarchical import Hierarchical
from gcbench.core.library.agreement import not_finite
from gcbench.core.methods.dense import Dense
from gcbench.core.wrappers.virtual import parts_of
from gcbench.core.wrappers.wrappers import CheckedGradients

Overlap = bool | Literal["auto"]


def decide_overlap(
    asked: Overlap,
    compressor: Compressor,
    device: torch.device,
    gather: Callable[[Any], list[Any]],
) -> bool:
    """Return whether buckets are exchanged as DDP completes them; all workers call this.

    With "auto" they are if the method can do that, and there is something free to do it: a GPU's
    stream, or a processor's core for each process. `gather` returns what each worker has.
    """
    if not isinstance(asked, bool) and asked != "auto":
        raise ConfigError(f"overlap={asked!r}: type True, False or 'auto'")
    if compressor.properties.scope == "global":
        if asked is True:
            raise ConfigError(
                "overlap=True sends tensors as their gradients arrive, and this method must see "
                "all of them at once (its scope is global, see gcbench methods NAME); type "
                "overlap=False"
            )
        return False
    if asked == "auto":
        return device.type == "cuda" or has_free_cores(gather(cores_here()))
    return asked


def cores_here() -> tuple[str, list[int], int]:
    """Return this process's host, the cores that it may use, and its threads."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = [*range(os.cpu_count() or 1)]
    return socket.gethostname(), cores, torch.get_num_threads()


def has_free_cores(processes: list[tuple[str, list[int], int]]) -> bool:
    """Return whether each process has a core that its backward pass does not use."""
    cores: dict[str, set[int]] = defaultdict(set)
    needed: dict[str, int] = defaultdict(int)
    for host, own, threads in processes:
        cores[host] |= set(own)
        needed[host] += threads + 1
    return all(len(cores[host]) >= needed[host] for host in cores)


def split_nodes(comm: Comm, compressor: Compressor) -> None:
    """Make the groups of a method's nodes, which a thread should not do beside others."""
    for part in parts_of(compressor):
        if isinstance(part, Hierarchical):
            Nodes.of(comm, part.workers_per_node)


def type_of_means(compressor: Compressor) -> torch.dtype | None:
    """Return the type in which one all-reduce is all that a method does; None for other methods."""
    inner = compressor.inner if isinstance(compressor, CheckedGradients) else compressor
    if not isinstance(inner, Dense) or not inner.is_one_all_reduce:
        return None
    dtype: torch.dtype = getattr(torch, inner.dtype)
    return dtype


class Mean(Future[tuple[State, Tensor]]):
    """A mean over all workers that is under way, and will be in the place of `tensors`."""

    @torch.no_grad()
    def __init__(
        self,
        tensors: Sequence[Tensor],
        dtype: torch.dtype,
        group: dist.ProcessGroup,
        meter: Meter,
    ) -> None:
        """Begin the mean that `Dense` makes of this worker's fp32 gradients."""
        super().__init__()
        self._tensors, self._workers = tensors, group.size()
        in_place = len(tensors) == 1 and tensors[0].dim() == 1
        whole = tensors[0] if in_place else torch.cat([x.flatten() for x in tensors])
        self._wire = whole if dtype == torch.float32 else whole.to(dtype).div_(self._workers)
        bits = row_bits([self._wire.view(1, -1)])
        meter.count_equal("all_reduce", self._workers, bits, bits)
        self._work = dist.all_reduce(self._wire, group=group, async_op=True)

    @torch.no_grad()
    def result(self, timeout: float | None = None) -> tuple[State, Tensor]:
        """Wait for it; return a state, which is empty, and whether a value is not finite."""
        self._work.wait()
        if self._wire.dtype == torch.float32:
            self._wire.div_(self._workers)
        parts = self._wire.split([x.numel() for x in self._tensors])
        for x, part in zip(self._tensors, parts, strict=True):
            if x is not self._wire:
                x.copy_(part.view(x.shape))
        return State(), not_finite([x.view(1, -1) for x in parts])
