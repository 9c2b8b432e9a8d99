"""Contenders, which take training steps in turn: gcbench's methods, and PyTorch's own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import GlooTransport, MirrorTransport
from gcbench.runner.bench.network import gloo_group, hook_state
from gcbench.runner.bench.timing import Row, mean_seconds
from gcbench.runner.control import Control, LocalControl
from gcbench.runner.data import Data
from gcbench.runner.launch.instantiate import make_model
from gcbench.runner.launch.meeting import Connections
from gcbench.runner.launch.plan import Machine, make_plan
from gcbench.runner.launch.worker import build_run
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.loop import train_step
from gcbench.runner.train.precision import autocast_bf16
from gcbench.runner.train.replica import is_recurrent
from gcbench.runner.train.run import Progress
from gcbench.runner.train.scores import loss_of

CPU = torch.device("cpu")

Hook = Callable[[DistributedDataParallel], object]


class Contender(Protocol):
    """A method that takes training steps in turn with others."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def period(self) -> int:
        """Return the number of steps in one cycle: H with local steps, else 1."""

    def step(self) -> None: ...
    def settle(self) -> None:
        """Wait for pending exchanges, before other contenders take their turn."""

    def facts(self, control: Control) -> Row:
        """Return further columns of this contender's row."""


class GcbenchSteps:
    """A method as `gcbench` runs it; if `mirrored`, other processes are mirrors of this one."""

    def __init__(
        self, config: RunConfig, data: Data, control: Control, mirrored: bool = False
    ) -> None:
        workers = config.trainer.workers
        virtual = config.trainer.launcher == "virtual"
        comm = (
            Comm(workers, MirrorTransport(dist.get_rank(), workers))
            if mirrored
            else _comm(workers, virtual)
        )
        own_control = LocalControl() if mirrored or virtual else control
        connections = Connections(comm, own_control, CPU)
        with tempfile.TemporaryDirectory() as folder:
            self.run = build_run(
                config, make_plan(config, Machine.detect()), connections, data, Path(folder)
            )
        self.progress = Progress.start(self.run)

    @property
    def model(self) -> nn.Module:
        return self.run.replica.model

    @property
    def period(self) -> int:
        return self.run.estimator.period

    def step(self) -> None:
        train_step(self.run, self.progress)

    def settle(self) -> None:
        self.run.pipeline.settle(self.run, self.progress)

    def facts(self, control: Control) -> Row:
        """Return a step's seconds of exchange and coding, hidden or not, its bits and collectives.

        Seconds are means within a period and medians over periods. A collective is its kind, the
        number of its messages per step, and the payload bits of each.
        """
        steps, run = self.progress.step, self.run
        taken = control.gather(run.clock.take())
        by_step = list(zip(*taken, strict=True))
        last = len(by_step) - self.period
        periods = [by_step[i : i + self.period] for i in range(0, last + 1, self.period)]
        of_periods = [mean_seconds([*map(list, zip(*same, strict=True))]) for same in periods]
        return {
            "exchange_seconds": median(s["exchange"] + s["hidden_exchange"] for s in of_periods),
            "coding_seconds": median(
                s["encode"] + s["decode"] + s["hidden_coding"] for s in of_periods
            ),
            "sent_bits": run.comm.meter.sent_bits[0] / steps,
            "collectives": [
                [kind.collective, total.messages / steps, total.sent_bits / total.messages]
                for kind, total in run.comm.meter.totals_by_worker[0].items()
            ],
        }


def powersgd_hook(rank: int) -> Hook:
    """Return what registers PyTorch's PowerSGD hook."""
    return lambda ddp: ddp.register_comm_hook(hook_state(dist.group.WORLD, rank), powerSGD_hook)


@dataclass
class TorchSteps:
    """DistributedDataParallel, in which `hook` registers a communication hook.

    Where the model is `alone`, nothing is exchanged.
    """

    config: RunConfig
    data: Data
    hook: Hook | None = None
    bucket_mib: int | None = None  # None: as DDP chooses
    device: torch.device = CPU
    alone: bool = False
    number: int = 0
    carry: Any = None
    handle: Any = None  # what the hook returned
    period: int = 1
    forward: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        model = make_model(self.config.model.as_dict(), self.data.shape, self.data.outputs)
        if self.config.trainer.channels_last:
            model = model.to(memory_format=torch.channels_last)
        model = model.to(self.device)
        self.recurrent = is_recurrent(model)
        self.forward = model
        if not self.alone:
            self.forward = DistributedDataParallel(model, bucket_cap_mb=self.bucket_mib)
            if self.hook:
                self.handle = self.hook(self.forward)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, weight_decay=1e-4)

    @property
    def model(self) -> nn.Module:
        return self.forward

    def step(self) -> None:
        trainer = self.config.trainer
        epoch, step = divmod(
            self.number, self.data.steps_per_epoch(trainer.workers, trainer.batch_size)
        )
        inputs, targets = self.data.batch(
            epoch=epoch,
            step=step,
            worker=dist.get_rank(),
            workers=trainer.workers,
            batch_size=trainer.batch_size,
            seed=self.config.seed,
        )
        self.number += 1
        self.optimizer.zero_grad(set_to_none=True)
        bf16 = self.config.trainer.precision == "bf16"
        with autocast_bf16(self.device.type) if bf16 else nullcontext():
            loss = loss_of(self.data.task, self._outputs(inputs), targets)
        loss.backward()
        self.optimizer.step()

    def _outputs(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == 4 and self.config.trainer.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        if not self.recurrent:
            return cast(Tensor, self.forward(inputs))
        outputs, carry = self.forward(inputs, self.carry)
        self.carry = tuple(part.detach() for part in carry)
        return cast(Tensor, outputs)

    def settle(self) -> None:
        pass

    def facts(self, control: Control) -> Row:
        """Return the bits that our compression, if the hook is one, has sent per step."""
        bits = getattr(self.handle, "bits_sent", None)
        return {} if bits is None else {"sent_bits": bits / self.number}


def _comm(workers: int, virtual: bool) -> Comm:
    """Return a Comm over a group of its own; virtual workers have no other process."""
    return Comm(workers, None if virtual else GlooTransport(gloo_group()))
