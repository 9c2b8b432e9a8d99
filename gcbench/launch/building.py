"""One process's part of a run: replica, optimizer, schedule, compressor, pipeline, clock."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gcbench.data import Data
from gcbench.launch.connections import Connections
from gcbench.launch.instantiate import make, make_compressor, make_model
from gcbench.launch.optimization import make_optimizer, make_schedule
from gcbench.launch.plan import Plan
from gcbench.models import InitializedFromData
from gcbench.records.clock import Clock
from gcbench.records.environment import describe_machine
from gcbench.records.files import RunFiles
from gcbench.records.gradients import GradientFiles
from gcbench.seeds import mix
from gcbench.settings.config import RunConfig
from gcbench.settings.trainer import TrainerSettings
from gcbench.train.pipeline import make_pipeline, overlap_obstacle
from gcbench.train.replica import Replica
from gcbench.train.run import Estimator, Run
from gcbench.train.schedules import Schedule, total_steps

MODEL_SAMPLES = 5000  # samples for a model that is initialized from data


def build_run(
    config: RunConfig,
    plan: Plan,
    connections: Connections,
    data: Data,
    directory: Path,
    received: Sequence[str] = (),
) -> Run:
    """Return this process's part of the run before its first step."""
    trainer = config.trainer
    comm, side_comm, control, device = connections
    replica = _make_replica(config, connections, data, trainer)
    steps_per_epoch = data.steps_per_epoch(plan.workers, trainer.batch_size)
    steps = total_steps(trainer.max_steps, trainer.epochs, steps_per_epoch)

    def make_scheduled(stepped: nn.Module) -> tuple[Optimizer, Schedule]:
        optimizer = make_optimizer(config.optimizer, stepped)
        lengths = plan.workers, steps_per_epoch, steps
        return optimizer, make_schedule(config.schedule, optimizer, *lengths)

    estimator: Estimator = make(config.estimator, "estimator")
    optimizers = estimator.build_optimizers(replica, make_scheduled)
    clock = Clock(device)
    comm.clock = clock
    compressor = make_compressor(config.compressor, quiet=True)  # the parent has warned
    may_overlap = overlap_obstacle(compressor, estimator, plan.every_worker_alone) is None
    return Run(
        data=data,
        replica=replica,
        estimator=estimator,
        pipeline=make_pipeline(trainer, replica, clock, side_comm, may_overlap),
        compressor=compressor,
        comm=comm,
        control=control,
        optimizer=optimizers.shared,
        schedule=optimizers.schedule,
        inner=optimizers.inner,
        clock=clock,
        recordings=GradientFiles(RunFiles(directory).gradients, _in_short(config)),
        settings=trainer,
        seed=config.seed,
        process=comm.local.start // len(comm.local),
        steps_per_epoch=steps_per_epoch,
        total_steps=steps,
        stop_requested=lambda: bool(received),
        conditions=control.gather(_conditions(config, plan))[0],
    )


def _conditions(config: RunConfig, plan: Plan) -> dict[str, Any]:
    """Return what times depend on and a run that continues may change, by name."""
    trainer, machine = config.trainer, describe_machine()
    return {
        "network": config.network.as_dict() if config.network else {},
        "link": os.environ.get("GCBENCH_LINK"),
        "device": plan.device,
        "backend": plan.backend,
        "workers": plan.workers,
        "processes per machine": plan.local_processes,
        "threads": plan.threads,
        "oversubscription": plan.oversubscribed,
        "codecs": plan.codec_backend,
        "overlap": trainer.overlap,
        "bucket_mib": trainer.bucket_mib if trainer.overlap else None,
        "processor": machine.cpu,
        "GPUs": machine.gpus,
    }


def _make_replica(
    config: RunConfig, connections: Connections, data: Data, trainer: TrainerSettings
) -> Replica:
    """Return the model of this process, with the initial weights that all workers share."""
    torch.manual_seed(mix(config.seed) >> 1)
    model = make_model(config.model, data.shape, data.outputs)
    if isinstance(model, InitializedFromData):
        model.initialize_from(_first_inputs(data, config.seed).cpu())
        # Processors that round differently would compute different weights from the same inputs.
        connections.control.broadcast(list(model.parameters()))
    return Replica(model, data.task, connections.comm.local, connections.device, trainer)


def _first_inputs(data: Data, seed: int) -> Tensor:
    """Return training inputs `[n, ...]`, enough for the statistics of a model's initialization."""
    samples = min(MODEL_SAMPLES, data.train_samples)
    return data.batch(epoch=0, step=0, worker=0, workers=1, batch_size=samples, seed=seed)[0]


def _in_short(config: RunConfig) -> dict[str, Any]:
    choices = {k: v for k, v in config.choices.items() if k not in ("trainer", "logger", "resume")}
    trainer = {"gpus": config.trainer.gpus, "batch_size": config.trainer.batch_size}
    return {**choices, **trainer, "seed": config.seed}
