"""The work of every process of a run: join, build, train, report."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gcbench.core.codecs.kernels import backend_in_use, use_backend
from gcbench.core.codecs.native import load_native
from gcbench.core.codecs.noise import mix
from gcbench.core.errors import ConfigError
from gcbench.core.library.exchange import Exchange
from gcbench.core.meeting import restarts
from gcbench.runner.console import console
from gcbench.runner.data import Data
from gcbench.runner.launch.failure import Place, watch
from gcbench.runner.launch.instantiate import make, make_compressor, make_data, make_model
from gcbench.runner.launch.local import collect_signals, tell_begun
from gcbench.runner.launch.meeting import Connections, join_workers
from gcbench.runner.launch.memory import keep_freed_memory, reset_peak
from gcbench.runner.launch.optimization import make_optimizer, make_schedule
from gcbench.runner.launch.outcome import Ending, make_outcome
from gcbench.runner.launch.plan import Plan
from gcbench.runner.models import InitializedFromData
from gcbench.runner.records.clock import Clock
from gcbench.runner.records.environment import describe_machine
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.gradients import GradientFiles
from gcbench.runner.records.loggers import start_logger
from gcbench.runner.records.result import Begun
from gcbench.runner.records.summary import ProgressDisplay, print_summary
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.settings.groups import TrainerSettings
from gcbench.runner.train.checkpoints import Checkpoints, save_weights
from gcbench.runner.train.loop import train
from gcbench.runner.train.pipeline import (
    exchanges_in_background,
    make_pipeline,
    overlap_obstacle,
)
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.run import Estimator, Progress, Run
from gcbench.runner.train.schedules import Schedule, total_steps

log = logging.getLogger("gcbench")


def work(
    config: RunConfig,
    plan: Plan,
    directory: Path,
    begun: Begun,
    received: Sequence[str] | None = None,
) -> None:
    """Take part in the run as one process, from its start to the written result.

    After a stop signal the run ends between two steps, with a checkpoint. `received` is a list of
    the stop signals so far; without it, this process collects them itself.
    """
    torch.set_num_threads(plan.threads)
    keep_freed_memory()
    signals = collect_signals() if received is None else nullcontext(received)
    with signals as received, join_workers(config, plan, directory) as connections:
        reset_peak(connections.device)
        data = make_data(config).to(connections.device)
        run = build_run(config, plan, connections, data, directory, received)
        progress = Progress.start(run)
        files = RunFiles(directory)
        checkpoints = Checkpoints.of(config, files.checkpoints)
        latest = checkpoints.latest()
        if latest is not None:
            checkpoints.load(latest, run, progress)
        resumed_step = progress.step
        if run.first:
            _continue_metrics(files, progress)
            if restarts():
                log.warning("a worker died; restart %d, from step %d", restarts(), progress.step)
        logger = start_logger(config, files, begun) if run.first else None
        output = console()
        if run.first:
            tell_begun()
        with ProgressDisplay(run.total_steps, output, run.first, plan.quiet) as display:

            def record(line: dict[str, Any]) -> None:
                if logger is not None:
                    files.append_metrics(line)
                    logger.log(line)
                    display.show(line)

            def before_save() -> None:
                if logger is not None and progress.step < run.total_steps:
                    logger.complete_step()

            with _watch_run(run, progress):
                choose_codecs(plan, run, progress)
                status, reason = train(run, progress, checkpoints, record, before_save)
                lost = None
                if status == "done":
                    lost = save_weights(run, progress, checkpoints, files.weights)
        ending = Ending(
            status="failed" if lost else status,
            reason=lost or reason,
            resumed_step=resumed_step,
            has_weights=files.weights.exists(),
        )
        result = make_outcome(config, plan, run, progress, begun, ending)
        if logger is not None:
            result = result.model_copy(update={"logged": logger.logged})
            files.write_result(result)
            logger.finish(result)
            if not plan.quiet:
                print_summary(result, directory, output, config.verbose)


def _continue_metrics(files: RunFiles, progress: Progress) -> None:
    """Truncate metrics.jsonl to the checkpoint, and warn if lines before it are missing."""
    tested = progress.tests[-1]["step"] if progress.tests else 0
    if damaged := files.truncate_metrics(progress.step, tested):
        log.warning(
            "%s had %d damaged line%s, which %s removed: curves have a gap",
            files.metrics,
            damaged,
            "s" if damaged > 1 else "",
            "are" if damaged > 1 else "is",
        )
    if files.last_logged() < progress.logged:
        log.warning(
            "%s lacks lines before step %d, as after a power failure: curves have a gap",
            files.metrics,
            progress.logged,
        )


def _watch_run(run: Run, progress: Progress) -> AbstractContextManager[None]:
    """Return a watch over the run's processes, or a null context for a single process."""
    if run.comm.processes == 1:
        return nullcontext()

    def where() -> Place:
        waits = run.control.waits or run.clock.phase == "exchange"
        if run.clock.phase == "end":
            what = "an agreement" if run.control.waits else "a test or a checkpoint"
            when = f"after step {progress.step - 1}" if progress.step else "before the first step"
            return Place(waits, f"{when}, in {what}")
        return Place(waits, f"in {run.clock.phase} of step {progress.step}")

    return watch(run.process, run.comm.processes, where, run.settings.timeout_seconds)


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
    comm, control, device = connections
    replica = _make_replica(config, connections, data, trainer)
    steps_per_epoch = data.steps_per_epoch(plan.workers, trainer.batch_size)
    steps = total_steps(trainer.max_steps, trainer.epochs, steps_per_epoch)

    def make_scheduled(stepped: nn.Module) -> tuple[Optimizer, Schedule]:
        optimizer = make_optimizer(config.optimizer, stepped)
        lengths = plan.workers, steps_per_epoch, steps
        return optimizer, make_schedule(config.schedule, optimizer, *lengths)

    estimator: Estimator = make(config.estimator.as_dict(), "estimator")
    optimizers = estimator.build_optimizers(replica, make_scheduled)
    clock = Clock(device)
    compressor = make_compressor(config.compressor, quiet=True)  # the parent has warned
    may_overlap = overlap_obstacle(compressor, estimator, plan.every_worker_alone) is None
    return Run(
        data=data,
        replica=replica,
        estimator=estimator,
        pipeline=make_pipeline(trainer, replica, estimator, may_overlap),
        exchange=Exchange(
            compressor,
            comm,
            device,
            clock=clock,
            beside=exchanges_in_background(config),
            in_place=True,
        ),
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
    model = make_model(config.model.as_dict(), data.shape, data.outputs)
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
    trainer = {"workers": config.trainer.workers, "batch_size": config.trainer.batch_size}
    return {**choices, **trainer, "seed": config.seed}


def choose_codecs(plan: Plan, run: Run, progress: Progress) -> None:
    """Use the plan's codecs if all processes can load them, and note it in `progress`.

    Eager and native codecs have the same bits, except where products of matrices are added.
    """
    problems = [*filter(None, run.control.gather(_problem(plan)))]
    if problems and not plan.may_fall_back:
        raise ConfigError(f"{problems[0]}; type trainer.codec_backend=eager")
    if problems and run.first:
        log.warning("codecs are eager, and slower: %s", problems[0])
    use_backend("eager" if problems else plan.codec_backend)
    before, now = progress.codec_sums, backend_in_use()
    if before[-1:] == [now]:
        return
    if before and run.first:
        log.warning(
            "from step %d on, %s code adds floats up in place of %s code, and rounds differently",
            progress.step,
            now,
            before[-1],
        )
    progress.codec_sums = [*before, now]


def _problem(plan: Plan) -> str | None:
    """Return why this process cannot run the plan's codecs, or None."""
    if plan.codec_backend == "native":
        try:
            load_native()
        except RuntimeError as error:
            return str(error)
    elif plan.codec_backend == "eager" and plan.may_fall_back:
        return "there is no C++ compiler on this machine; install g++"
    return None
