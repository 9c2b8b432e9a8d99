"""Training steps with the exchange beside the computation, in processes that stay up."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from gloo_pool import Process

from gcbench.comm import Comm, GlooTransport
from gcbench.config import Config
from gcbench.launch.building import build_run
from gcbench.launch.connections import Connections
from gcbench.launch.instantiate import make_data
from gcbench.launch.plan import Machine, make_plan
from gcbench.train.pipeline import exchanges_in_background
from gcbench.train.run import Progress, Sample
from gcbench.train.step import sample, train_step

CPU = torch.device("cpu")


class Trained(NamedTuple):
    parameters: list[Any]  # after every step
    sample: Sample  # of the last update, without the bound of its codes
    sent_bits: list[int]
    seconds: dict[str, dict[str, float]]
    buckets: int  # in the last step
    overlap_ratio: float | None


def train_steps(process: Process, config: Config, steps: int) -> Trained:
    workers = config["trainer"]["gpus"]
    beside = None
    if exchanges_in_background(config["trainer"]):
        group = dist.new_group()
        assert isinstance(group, dist.ProcessGroup)
        beside = Comm(workers, GlooTransport(group))
    joined = Connections(process.comm(workers), beside, process.control, CPU)
    with tempfile.TemporaryDirectory() as directory:
        run = build_run(
            config,
            make_plan(config, Machine.detect()),
            joined,
            make_data(config),
            Path(directory),
        )
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
