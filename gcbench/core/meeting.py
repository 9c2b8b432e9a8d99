"""A default process group that also works after a restart of the processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gcbench.core.deadline import within

MEETING_FILE = "GCBENCH_MEETING"  # environment variable with the path of the file
# Variable that torchrun sets if its agent keeps one store for as long as its processes live.
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
LEAVE_SECONDS = 3.0  # for a process that fails to leave its groups
_joins = 0  # groups that this process has joined, one for each row of a sweep


def restarts() -> int:
    """Return how often the processes of this run have been restarted."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


@contextmanager
def join(backend: str | None = None, **more: Any) -> Iterator[None]:
    """Be in the default process group for the length of the context.

        with gcbench.join("gloo"):  # in place of init_process_group and destroy_process_group
            ...

    It also works where torchrun has started the processes again after one of them died: torch's own
    `init_process_group` then tries to reach the processes before, with gloo, and fails or hangs. A
    process that fails leaves without waiting for others.

    Args:
        backend: as in `init_process_group`.
        **more: further arguments of `init_process_group`.
    """
    global _joins
    _joins += 1
    # The agent's store still has the addresses of earlier processes, and of a sweep's earlier rows.
    if MEETING_FILE in os.environ or restarts() or os.environ.get(AGENT_STORE) == "True":
        more |= {
            "store": store("meeting"),
            "rank": int(os.environ["RANK"]),
            "world_size": int(os.environ["WORLD_SIZE"]),
        }
    dist.init_process_group(backend, **more)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # which would hide the first error
            within(LEAVE_SECONDS, dist.destroy_process_group, None)
        raise
    dist.destroy_process_group()


def store(name: str) -> Any:
    """Return a named part of the store that all processes share.

    It is empty after a restart, and in the next row of a sweep.
    """
    part = f"gcbench-{name}-{restarts()}-{_joins}"
    return dist.PrefixStore(part, _open_store())  # type: ignore[attr-defined]


def place_of_store() -> str:
    """Return where the store is, in words."""
    if path := os.environ.get(MEETING_FILE):
        return f"the store in {path}"
    return f"the store at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def _open_store() -> Any:
    if path := os.environ.get(MEETING_FILE):
        return dist.FileStore(path)  # type: ignore[attr-defined]
    return dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=60),
    )
