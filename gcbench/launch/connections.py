"""The communicators through which a process exchanges with the others of its run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from gcbench.comm.collectives import Comm
from gcbench.comm.control import Control, LocalControl, ProcessGroupControl
from gcbench.comm.emulation import EmulatedTransport
from gcbench.comm.network import Link
from gcbench.comm.transport import GlooTransport, NcclTransport
from gcbench.config import Config, emulated_link
from gcbench.launch.meeting import join
from gcbench.launch.plan import Plan
from gcbench.launch.same_code import refuse_different_code
from gcbench.launch.same_config import refuse_different_configs
from gcbench.settings.trainer import TrainerSettings
from gcbench.train.pipeline import exchanges_in_background


class Connections(NamedTuple):
    """The communicators of a process, and its device."""

    comm: Comm
    side_comm: Comm | None  # for an exchange that runs at the same time as others
    control: Control
    device: torch.device


@contextmanager
def join_workers(config: Config, plan: Plan, directory: Path) -> Iterator[Connections]:
    """Connect this process with the other processes of the run, for the length of the context."""
    local_rank = int(os.environ.get("LOCAL_RANK", 0)) if plan.processes > 1 else 0
    device = torch.device("cpu")
    if plan.device == "cuda":
        device = torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    asynchronous = exchanges_in_background(TrainerSettings.of(config["trainer"]))
    checksum = config["trainer"]["checksum"]
    if plan.processes == 1:
        comm = Comm(plan.workers, checksum=checksum)
        side_comm = Comm(plan.workers, checksum=checksum) if asynchronous else None
        yield Connections(comm, side_comm, LocalControl(), device)
        return
    timeout = timedelta(seconds=config["trainer"]["timeout_seconds"])
    # NCCL's timeout ends the process. It is twice as long, so that the timeout of the processes'
    # agreement over gloo, which can report more, comes first.
    nccl = plan.backend == "nccl"
    with join(
        plan.backend,
        timeout=2 * timeout if nccl else timeout,
        device_id=device if nccl else None,
    ):
        world = cast(dist.ProcessGroup, dist.group.WORLD)
        control = ProcessGroupControl(
            cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timeout))
        )
        refuse_different_configs(config, directory, control)
        refuse_different_code(config, control)
        on_host = plan.local_processes * plan.workers // plan.processes
        link = emulated_link(config["network"])

        def make_comm(group: Any) -> Comm:
            direct = NcclTransport(group, timeout) if nccl else GlooTransport(group, timeout)
            transport = EmulatedTransport(direct, Link(**link)) if link else direct
            return Comm(plan.workers, transport, workers_per_host=on_host, checksum=checksum)

        yield Connections(
            make_comm(world),
            make_comm(dist.new_group(timeout=timeout)) if asynchronous else None,
            control,
            device,
        )
