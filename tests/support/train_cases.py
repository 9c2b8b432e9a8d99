"""Parts of the training loop, for processes that stay up."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from gloo_pool import Process

from gcbench.runner.launch.instantiate import make_data
from gcbench.runner.launch.meeting import Connections
from gcbench.runner.launch.plan import Machine, make_plan
from gcbench.runner.launch.worker import build_run
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.checkpoints import Checkpoints
from gcbench.runner.train.drift import ReplicasDrifted, refuse_drift
from gcbench.runner.train.loop import train
from gcbench.runner.train.run import Progress


def drift_error(process: Process, drifted: tuple[int, ...]) -> str | None:
    """Return the error message for a model that differs in the processes `drifted`."""
    weight = torch.arange(6.0) + (1e-6 * process.rank if process.rank in drifted else 0)
    weight[0] += 1e-6 if process.rank in drifted else 0
    replica: Any = SimpleNamespace(parameters={"weight": weight})
    try:
        refuse_drift(
            cast(Any, SimpleNamespace(control=process.control, replica=replica)),
            cast(Any, SimpleNamespace(step=10)),
        )
    except ReplicasDrifted as error:
        return str(error)
    return None


def drift_error_at_the_end(process: Process, config: RunConfig) -> str | None:
    """Return the error message if process 1 loses its weights after the last step was logged."""
    workers = config.trainer.workers
    joined = Connections(process.comm(workers), process.control, torch.device("cpu"))
    plan, data = make_plan(config, Machine.detect()), make_data(config)
    with tempfile.TemporaryDirectory() as folder:
        run = build_run(config, plan, joined, data, Path(folder))
        checkpoints = Checkpoints.of(config, Path(folder))

        def record(line: dict[str, Any]) -> None:
            if process.rank == 1 and line["step"] == run.total_steps:
                for p in run.replica.parameters.values():
                    p.data.zero_()

        try:
            train(run, Progress.start(run), checkpoints, record)
        except ReplicasDrifted as error:
            return str(error)
    return None
