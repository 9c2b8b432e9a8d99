"""Whether exchanges run beside the backward pass, and the process group that they need."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import torch

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.nodes import Nodes
from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.exchange.hierarchical import Hierarchical
from gcbench.core.wrappers.virtual import parts_of

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
