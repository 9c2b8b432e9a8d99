"""Process groups of our own, with the timeout of the group whose processes they have, and hosts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import torch.distributed as dist


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
