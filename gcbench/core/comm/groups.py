"""Process groups of our own, with the timeout of the group whose processes they have."""

from __future__ import annotations

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


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Return how long a group waits, which `dist.new_group` would not take over."""
    timeout: timedelta = group._get_backend(group._device_types[0]).options._timeout
    return timeout
