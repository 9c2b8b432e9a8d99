"""How the processes of a run find each other, and the communicators through which they exchange.

Processes that gcbench starts on one machine meet in a file that only their user can read, so that
no port is open. Those that torchrun or srun started meet in the TCP store of torch.distributed,
which trusts everybody who can reach its port.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, cast

import torch
import torch.distributed as dist

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import GlooTransport, NcclTransport, group_beside
from gcbench.core.meeting import join
from gcbench.runner.control import Control, LocalControl, ProcessGroupControl
from gcbench.runner.launch.agreement import refuse_different_code, refuse_different_configs
from gcbench.runner.launch.emulated import EmulatedTransport
from gcbench.runner.launch.plan import Plan
from gcbench.runner.network import Link
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.pipeline import exchanges_in_background

RUN_ID = "TORCHELASTIC_RUN_ID"  # set by torchrun, and by nothing else


def security_notice(on_one_machine: bool) -> str | None:
    """Return what processes trust that are not joined by a file; None for those that are.

    Agents of torchrun tell each other pickles, in a store that anybody may write.
    """
    if RUN_ID in os.environ:
        instead = "type gcbench without torchrun" if on_one_machine else "use a trusted network"
        return (
            "torchrun listens to everybody who can reach this machine and, with --standalone or "
            f"--rdzv-backend=c10d, runs the code that they send: {instead}"
        )
    if on_one_machine:
        return None
    return (
        "processes on several machines communicate through torch.distributed, without encryption "
        "or authentication: use a trusted network"
    )


class Connections(NamedTuple):
    """The communicators of a process, for gradients and for all else, and its device."""

    comm: Comm
    control: Control
    device: torch.device


@contextmanager
def join_workers(config: RunConfig, plan: Plan, directory: Path) -> Iterator[Connections]:
    """Connect this process with the other processes of the run, for the length of the context."""
    local_rank = int(os.environ.get("LOCAL_RANK", 0)) if plan.processes > 1 else 0
    device = torch.device("cpu")
    if plan.device == "cuda":
        device = torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    checksum = config.trainer.checksum
    if plan.processes == 1:
        yield Connections(Comm(plan.workers, checksum=checksum), LocalControl(), device)
        return
    timeout = timedelta(seconds=config.trainer.timeout_seconds)
    # NCCL's timeout ends the process. It is twice as long, so that the timeout of the processes'
    # agreement over gloo, which can report more, comes first.
    nccl = plan.backend == "nccl"
    with join(
        plan.backend,
        timeout=2 * timeout if nccl else timeout,
        device_id=device if nccl else None,
    ):
        world = cast(dist.ProcessGroup, dist.group.WORLD)
        control = ProcessGroupControl(group_beside(world, backend="gloo", timeout=timeout))
        refuse_different_configs(config, directory, control)
        refuse_different_code(config, control)
        on_host = plan.local_processes * plan.workers // plan.processes
        network = config.network
        link = network and Link(network.bits_per_second, network.latency_seconds)

        # DDP, whose buckets are exchanged in the background, uses the one of all processes.
        group = group_beside(world) if exchanges_in_background(config) else world
        direct = NcclTransport(group) if nccl else GlooTransport(group)
        transport = EmulatedTransport(direct, link) if link else direct
        comm = Comm(plan.workers, transport, workers_per_host=on_host, checksum=checksum)
        yield Connections(comm, control, device)
