"""Whole training steps by several methods in turn, beside PyTorch's own, between processes.

Torchrun or netlab starts the processes. Methods take turns in them, a few steps at a time, of which
the first is not timed: a slow spell of the machine meets all of them. The median over the timed
steps counts, each as long as in the slowest process.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gcbench.comm import Comm, GlooTransport, LocalControl, MirrorTransport, ProcessGroupControl
from gcbench.config import Config, compose_words, resolve
from gcbench.data import Data
from gcbench.launch.instantiate import make_data, make_model
from gcbench.launch.meeting import join
from gcbench.launch.memory import keep_freed_memory
from gcbench.launch.plan import Machine, plan
from gcbench.launch.worker import Connections, build_run
from gcbench.records.clock import Lap, Ledger
from gcbench.train.pipeline import exchanges_in_background
from gcbench.train.run import Progress
from gcbench.train.step import train_step
from gcbench.train.tasks import loss_of

CPU = torch.device("cpu")
TIMEOUT = timedelta(minutes=10)
TURN = 3  # steps of a method before the next one's
MESSAGES = 50  # the median of so many counts
ALONE = "no exchange"
TORCH = {"torch DDP": None, "torch DDP, powerSGD_hook rank 2": 2}  # ranks

Row = dict[str, Any]


class Steps(NamedTuple):
    rows: list[Row]
    message_seconds: float


class Contender(Protocol):
    """A method that takes training steps in turn with others."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def period(self) -> int:
        """Return after how many steps it does the same again: H of local steps."""

    def step(self) -> None: ...
    def settle(self) -> None:
        """Wait for what is under way, before others have their turn."""

    def facts(self, control: ProcessGroupControl) -> Row:
        """Return more columns of its row."""


def step_times(
    words: Sequence[str],
    methods: Mapping[str, Sequence[str]],
    rounds: int,
    alone: Collection[str] = (),
    beside_torch: bool = True,
) -> Steps:
    """Return a row a method, alike in all processes.

    `words` choose model, data and batch size, as `gcbench` takes them. Methods named in `alone`
    exchange nothing: a process codes, and decodes as many messages as it would get.
    """
    keep_freed_memory()
    torch.set_num_threads(1)
    join("gloo", timeout=TIMEOUT)
    try:
        control = ProcessGroupControl(_group())
        racing = make_contenders(words, methods, control, alone, beside_torch)
        return Steps(time_rows(racing, control, rounds), message_seconds(control))
    finally:
        dist.destroy_process_group()


def make_contenders(
    words: Sequence[str],
    methods: Mapping[str, Sequence[str]],
    control: ProcessGroupControl,
    alone: Collection[str] = (),
    beside_torch: bool = True,
) -> dict[str, Contender]:
    """Return a step without any exchange, PyTorch's own, and `methods` (words for each).

    All have one data set and one set of weights.
    """
    workers = dist.get_world_size()
    data = make_data(_config(words, workers))
    racing: dict[str, Contender] = {
        ALONE: Ours(_config([*words, "compressor=none"], 1), data, control)
    }
    for name, rank in TORCH.items() if beside_torch else ():
        racing[name] = Torch(_config(words, workers), data, rank)
    for name, more in methods.items():
        racing[name] = Ours(_config([*words, *more], workers), data, control, name in alone)
    _share_weights(racing.values())
    return racing


def time_rows(
    racing: Mapping[str, Contender], control: ProcessGroupControl, rounds: int
) -> list[Row]:
    """Return a row a contender, after a round that is not timed and `rounds` that are."""
    seconds: dict[str, list[float]] = {name: [] for name in racing}
    for number in range(1 + rounds):
        for name, contender in racing.items():
            times = _turn(contender, control)
            seconds[name] += times[1:] if number else []
    slowest = {
        name: [max(same) for same in zip(*control.gather(times), strict=True)]
        for name, times in seconds.items()
    }
    return [
        {
            "method": name,
            "step_seconds": median(times),
            "all_step_seconds": times,
            "of_no_exchange": ratio_in_turn(times, slowest[ALONE]),
            **racing[name].facts(control),
        }
        for name, times in slowest.items()
    ]


def ratio_in_turn(times: Sequence[float], others: Sequence[float]) -> float:
    """Return the median ratio of steps to those that another method took in the same turns."""
    return median(a / b for a, b in zip(times, others, strict=True))


def message_seconds(control: ProcessGroupControl) -> float:
    """Return the seconds of a message, however small.

    They are the latency of the link and of gloo's threads, which on a slow core is the larger part.
    An all-reduce of one number is 2 (W - 1) messages one after the other, from when the last
    process has come.
    """
    number, times = torch.zeros(1), []
    for _ in range(MESSAGES):
        control.barrier()
        start = time.perf_counter()
        dist.all_reduce(number)
        times.append(time.perf_counter() - start)
    shortest = [min(same) for same in zip(*control.gather(times), strict=True)]
    return median(shortest) / (2 * (dist.get_world_size() - 1))


def keep_measured(name: str, facts: Row, page: str) -> None:
    """Write outputs/results/links/NAME.json and outputs/tables/links/NAME.md; print the page."""
    shown = Path("outputs/tables/links") / f"{name}.md"
    kept = Path("outputs/results/links") / f"{name}.json"
    for path in (shown, kept):
        path.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    shown.write_text(page, encoding="utf-8")
    print(page)


def _turn(contender: Contender, control: ProcessGroupControl) -> list[float]:
    times = []
    for _ in range(TURN):
        control.barrier()
        start = time.perf_counter()
        for _ in range(contender.period):
            contender.step()
        times.append((time.perf_counter() - start) / contender.period)
    contender.settle()
    for p in contender.model.parameters():
        p.grad = None  # room for the others
    return times


class Ours:
    """A method as `gcbench` runs it; `alone` it is joined to mirrors of its process."""

    def __init__(
        self, config: Config, data: Data, control: ProcessGroupControl, alone: bool = False
    ) -> None:
        workers = config["trainer"]["gpus"]
        comm = Comm(workers, MirrorTransport(dist.get_rank(), workers)) if alone else _comm(workers)
        beside = _comm(workers) if exchanges_in_background(config["trainer"]) else None
        agreeing = LocalControl() if alone or workers == 1 else control
        joined = Connections(comm, beside, agreeing, CPU)
        with tempfile.TemporaryDirectory() as folder:
            self._run, _ = build_run(
                config, plan(config, Machine.detect()), joined, data, Path(folder)
            )
        self._progress = Progress.start(self._run)

    @property
    def model(self) -> nn.Module:
        return self._run.replica.model

    @property
    def period(self) -> int:
        return self._run.estimator.period

    def step(self) -> None:
        train_step(self._run, self._progress)

    def settle(self) -> None:
        self._run.pipeline.settle(self._run, self._progress)

    def facts(self, control: ProcessGroupControl) -> Row:
        """Return the seconds of a step's exchange and coding, hidden or not, and its collectives.

        A collective is its kind, how many there are, and the payload bits of each.
        """
        steps, run = self._progress.step, self._run
        by_step = [_seconds(laps) for laps in zip(*control.gather(run.clock.take()), strict=True)]
        return {
            "exchange_seconds": median(s["exchange"] + s["hidden_exchange"] for s in by_step),
            "coding_seconds": median(
                s["encode"] + s["decode"] + s["hidden_coding"] for s in by_step
            ),
            "sent_bits": run.comm.meter.sent_bits[0] / steps,
            "collectives": [
                [kind.collective, total.messages / steps, total.sent_bits / total.messages]
                for kind, total in run.comm.meter.totals_by_worker[0].items()
            ],
        }


@dataclass
class Torch:
    """DistributedDataParallel without a hook, or with its PowerSGD of `rank`.

    The hook has one bucket: with several it fails on gloo.
    """

    config: Config
    data: Data
    rank: int | None
    number: int = 0
    carry: Any = None
    period: int = 1
    forward: DistributedDataParallel = field(init=False)

    def __post_init__(self) -> None:
        model = make_model(self.config["model"], self.data.shape, self.data.outputs)
        if self.config["trainer"]["channels_last"]:
            model = model.to(memory_format=torch.channels_last)
        self.recurrent = getattr(model, "recurrent", False)
        self.forward = DistributedDataParallel(model, bucket_cap_mb=4096 if self.rank else None)
        if self.rank:
            group = dist.group.WORLD
            state = PowerSGDState(
                group,
                matrix_approximation_rank=self.rank,
                start_powerSGD_iter=2,
                min_compression_rate=1,
            )
            self.forward.register_comm_hook(state, powerSGD_hook)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, weight_decay=1e-4)

    @property
    def model(self) -> nn.Module:
        return self.forward

    def step(self) -> None:
        trainer = self.config["trainer"]
        epoch, step = divmod(
            self.number, self.data.steps_per_epoch(trainer["gpus"], trainer["batch_size"])
        )
        inputs, targets = self.data.batch(
            epoch=epoch,
            step=step,
            worker=dist.get_rank(),
            workers=trainer["gpus"],
            batch_size=trainer["batch_size"],
            seed=self.config["seed"],
        )
        self.number += 1
        self.optimizer.zero_grad(set_to_none=True)
        loss_of(self.data.task, self._outputs(inputs), targets).backward()
        self.optimizer.step()

    def _outputs(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == 4 and self.config["trainer"]["channels_last"]:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        if not self.recurrent:
            return cast(Tensor, self.forward(inputs))
        outputs, carry = self.forward(inputs, self.carry)
        self.carry = tuple(part.detach() for part in carry)
        return cast(Tensor, outputs)

    def settle(self) -> None:
        pass

    def facts(self, control: ProcessGroupControl) -> Row:
        return {}


def _seconds(laps: Sequence[list[Lap]]) -> dict[str, float]:
    """Return the seconds of one step by phase, means over the processes, whose laps these are."""
    ledger = Ledger(len(laps))
    ledger.add([[process] for process in laps])
    by_phase = ledger.seconds()
    assert by_phase is not None
    return {phase: seconds["mean"] for phase, seconds in by_phase.items()}


def _share_weights(racing: Iterable[Contender]) -> None:
    """Let all use the first one's weights: times are measured, and nothing is learned."""
    first, *others = (list(contender.model.parameters()) for contender in racing)
    for other in others:
        for p, shared in zip(other, first, strict=True):
            p.data = shared.data


def _comm(workers: int) -> Comm:
    """Return a Comm over a group of its own; one worker alone has nobody to exchange with."""
    return Comm(workers, GlooTransport(_group()) if workers > 1 else None)


def _group() -> dist.ProcessGroup:
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=TIMEOUT))


def _config(words: Sequence[str], workers: int) -> Config:
    launcher = "local" if workers > 1 else "virtual"  # a process a worker, whoever started it
    fixed = [
        f"trainer.gpus={workers}",
        "optimizer.momentum=0",
        f"trainer.launcher={launcher}",
        "trainer.threads=1",
        "logger.mode=disabled",
    ]
    return resolve(compose_words([*words, *fixed]))
