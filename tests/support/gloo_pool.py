"""Processes joined by gloo that stay up for the test session, as starting them takes seconds."""

from __future__ import annotations

import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from needed import patience
from processes import server

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import GlooTransport
from gcbench.runner.control import ProcessGroupControl
from gcbench.runner.launch.emulated import EmulatedTransport
from gcbench.runner.network import Link

PATIENCE = patience(300)  # for one job


class Process:
    """What a job uses to communicate with the other processes."""

    def __init__(self, rank: int, agreement: dist.ProcessGroup) -> None:
        self.rank = rank
        self.control = ProcessGroupControl(agreement)

    def comm(self, workers: int, link: Link | None = None) -> Comm:
        transport = GlooTransport(self.world)
        return Comm(workers, EmulatedTransport(transport, link) if link else transport)

    @property
    def world(self) -> dist.ProcessGroup:
        assert dist.group.WORLD is not None
        return dist.group.WORLD


class Pool:
    """`size` processes that run module-level functions of tests/support, or of the package."""

    def __init__(self, size: int) -> None:
        meeting = str(Path(tempfile.mkdtemp()) / "gloo")
        self.torn = False
        self._connections: list[Connection] = []
        self._processes = []
        for rank in range(size):
            parent_end, child_end = server().Pipe()
            process = server().Process(
                target=_serve, args=(rank, size, meeting, child_end), daemon=True
            )
            process.start()
            child_end.close()
            self._connections.append(parent_end)
            self._processes.append(process)

    def run(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """Run `job(process, *args)` in every process; return what each returned, by rank."""
        message = pickle.dumps((job, args))
        for connection in self._connections:
            connection.send_bytes(message)
        answers = []
        for rank, connection in enumerate(self._connections):
            if not connection.poll(PATIENCE):
                self._tear()
                raise AssertionError(f"rank {rank} says nothing")
            answers.append(pickle.loads(connection.recv_bytes()))
        failures = [answer for answer, failed in answers if failed]
        if 0 < len(failures) < len(answers):
            self._tear()
        assert not failures, "\n".join(failures)
        return [answer for answer, _ in answers]

    def _tear(self) -> None:
        """Kill processes that are out of step and would wait for each other in the next job."""
        self.torn = True
        for process in self._processes:
            process.kill()


_POOLS: dict[int, Pool] = {}


def pool(size: int) -> Pool:
    """Return the processes of the session, or new ones if only some of them failed in a job."""
    if size not in _POOLS or _POOLS[size].torn:
        _POOLS[size] = Pool(size)
    return _POOLS[size]


def _serve(rank: int, size: int, meeting: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=PATIENCE),
    )
    agreement = dist.new_group(backend="gloo")
    assert isinstance(agreement, dist.ProcessGroup)
    process = Process(rank, agreement)
    kept = _groups()
    while True:
        try:
            job, args = pickle.loads(connection.recv_bytes())
        except EOFError:  # the session has ended
            return
        try:
            answer = (job(process, *args), False)
        except Exception:
            answer = (f"rank {rank}:\n{traceback.format_exc()}", True)
        for group in _groups() - kept:  # each has three threads, one of them always awake
            dist.destroy_process_group(group)
        connection.send_bytes(pickle.dumps(answer))


def _groups() -> set[dist.ProcessGroup]:
    """Return the groups of this process, except those of meshes, which PyTorch uses again."""
    groups = dist.distributed_c10d._world.pg_map
    return {group for group in groups if not group.group_desc.startswith("mesh")}
