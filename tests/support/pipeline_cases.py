"""Training steps with the exchange beside the computation, in processes that stay up."""

from __future__ import annotations

import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gloo_pool import Process

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import GlooTransport, group_beside
from gcbench.runner.launch.instantiate import make_data
from gcbench.runner.launch.meeting import Connections
from gcbench.runner.launch.plan import Machine, make_plan
from gcbench.runner.launch.worker import build_run
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.loop import sample, train_step
from gcbench.runner.train.pipeline import exchanges_in_background
from gcbench.runner.train.run import Progress, Run, Sample
from gcbench.runner.train.snapshot import restore, shared_content, worker_content

CPU = torch.device("cpu")


class Trained(NamedTuple):
    parameters: list[Any]  # after every step
    sample: Sample  # of the last update, without the bound of its codes
    sent_bits: list[int]
    seconds: dict[str, dict[str, float]]
    buckets: int  # in the last step
    overlap_ratio: float | None


def make_run(process: Process, config: RunConfig) -> Run:
    workers = config.trainer.workers
    comm = process.comm(workers)
    if exchanges_in_background(config):
        comm = Comm(workers, GlooTransport(group_beside(process.world)))
    joined = Connections(comm, process.control, CPU)
    with tempfile.TemporaryDirectory() as directory:
        return build_run(
            config, make_plan(config, Machine.detect()), joined, make_data(config), Path(directory)
        )


def messages_of_a_continued_run(process: Process, config: RunConfig) -> list[int]:
    """Return the messages of two steps after the third, undisturbed and in a run that continues."""
    messages = []
    run = make_run(process, config)
    progress = Progress.start(run)
    for _ in range(3):
        train_step(run, progress)
    contents = deepcopy((shared_content(run, progress), [worker_content(run, progress, 0)]))
    for continued in (False, True):
        if continued:
            run = make_run(process, config)
            progress = Progress.start(run)
            restore(run, progress, *contents)
        before = _messages(run)
        for _ in range(2):
            train_step(run, progress)
        messages.append(_messages(run) - before)
    return messages


def _messages(run: Run) -> int:
    return sum(total.messages for total in run.comm.meter.totals_by_worker[0].values())


def train_steps(process: Process, config: RunConfig, steps: int) -> Trained:
    run = make_run(process, config)
    progress = Progress.start(run)
    snapshots, exchanged, buckets = [], None, 0
    for _ in range(steps):
        run.clock._seen = 9  # past the warm-up, so that all steps are timed
        exchanged = train_step(run, progress)
        buckets = len(run.clock._steps[-1][1])
        snapshots.append([p.detach().clone() for p in run.replica.parameters.values()])
    run.pipeline.settle(run, progress)
    assert exchanged is not None
    progress.ledger.add(process.control.gather(run.clock.take()))
    seconds = progress.ledger.seconds()
    assert seconds is not None
    return Trained(
        snapshots,
        sample(run, exchanged._replace(shannon_bits=None)),
        run.comm.meter.sent_bits,
        seconds,
        buckets,
        run.pipeline.overlap_ratio,
    )
