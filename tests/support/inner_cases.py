"""Runs of virtual workers that step on parameters of their own, taken step by step."""

from __future__ import annotations

from pathlib import Path

import torch
from sentence import SMALL, config_of
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.runner.control import LocalControl
from gcbench.runner.launch.instantiate import make_data
from gcbench.runner.launch.meeting import Connections
from gcbench.runner.launch.plan import Machine, make_plan
from gcbench.runner.launch.worker import build_run
from gcbench.runner.train.loop import train_step
from gcbench.runner.train.run import Progress, Run

W = 4
VIRTUAL = ("trainer.launcher=virtual", f"trainer.workers={W}")
MLP = ("model=mlp", "model.widths=[16]")
N = 64 * 16 + 16 + 16 * 10 + 10  # number of that model's parameters


def virtual_run(folder: Path, *overrides: str) -> tuple[Run, Progress]:
    """Return a run of virtual workers that has not begun."""
    config = config_of(*SMALL, "trainer.launcher=virtual", *overrides)
    workers = config.trainer.workers
    joined = Connections(Comm(workers), LocalControl(), torch.device("cpu"))
    plan, data = make_plan(config, Machine.detect()), make_data(config)
    built = build_run(config, plan, joined, data, folder)
    return built, Progress.start(built)


def build(folder: Path, *overrides: str) -> tuple[Run, Progress]:
    """Return such a run of four workers, of a small model unless another is typed."""
    model = () if any(override.startswith("model=") for override in overrides) else MLP
    return virtual_run(folder, *VIRTUAL, "trainer.max_steps=40", *model, *overrides)


def take_steps(built: tuple[Run, Progress], count: int) -> None:
    for _ in range(count):
        train_step(*built)


def shared(run: Run) -> dict[str, Tensor]:
    return {k: p.detach().clone() for k, p in run.replica.parameters.items()}


def train_losses(built: tuple[Run, Progress], count: int) -> float:
    """Return the mean loss of the next steps."""
    before = built[1].losses.clone()
    take_steps(built, count)
    return float((built[1].losses - before).mean() / count)
