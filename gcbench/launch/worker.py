"""The work of every process of a run: join, build, train, report."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gcbench.codecs.kernels import use_backend
from gcbench.comm import (
    Comm,
    Control,
    EmulatedTransport,
    GlooTransport,
    Link,
    LocalControl,
    NcclTransport,
    ProcessGroupControl,
)
from gcbench.config import Config, emulated_link
from gcbench.console import console
from gcbench.data import Data
from gcbench.launch.compilation import BackgroundCompilation
from gcbench.launch.instantiate import (
    make,
    make_compressor,
    make_data,
    make_model,
    to_dataclass,
)
from gcbench.launch.local import collect_signals
from gcbench.launch.meeting import join, restarts
from gcbench.launch.memory import keep_freed_memory
from gcbench.launch.optimization import make_optimizer, make_schedule
from gcbench.launch.outcome import Ending, make_outcome
from gcbench.launch.plan import Plan
from gcbench.launch.same_config import refuse_different_configs
from gcbench.launch.watch import Place, watch
from gcbench.models import InitializedFromData
from gcbench.records import ProgressDisplay, RunFiles, print_summary, start_logger
from gcbench.records.clock import Clock
from gcbench.records.environment import describe_machine
from gcbench.records.gradients import GradientFiles
from gcbench.records.result import Begun
from gcbench.seeds import mix
from gcbench.settings import TrainerSettings
from gcbench.train.checkpoints import Checkpoints
from gcbench.train.loop import train
from gcbench.train.pipeline import exchanges_in_background, make_pipeline, overlap_obstacle
from gcbench.train.replica import Replica
from gcbench.train.run import Estimator, Progress, Run
from gcbench.train.schedules import Schedule, total_steps
from gcbench.train.weights import save_weights

MODEL_SAMPLES = 5000  # samples for a model that is initialized from data

log = logging.getLogger("gcbench")


def work(
    config: Config,
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
    use_backend(plan.codec_backend)
    keep_freed_memory()
    signals = collect_signals() if received is None else nullcontext(received)
    with signals as received, join_workers(config, plan) as connections:
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
        with ProgressDisplay(run.total_steps, output, enabled=run.first) as display:

            def record(line: dict[str, Any]) -> None:
                if logger is not None:
                    files.append_metrics(line)
                    logger.log(line)
                    display.show(line)

            def before_save() -> None:
                if logger is not None and progress.step < run.total_steps:
                    logger.complete_step()

            compilation = BackgroundCompilation(config, plan, output)
            with _watch_run(run, progress), compilation:
                compilation.choose_sums(run, progress)
                status, reason = train(
                    run, progress, checkpoints, record, compilation.between_steps, before_save
                )
                if status == "done":
                    save_weights(run, progress, checkpoints, files.weights)
        ending = Ending(
            status=status,
            reason=reason,
            resumed_step=resumed_step,
            compiled_from_step=compilation.compiled_from_step,
            has_weights=files.weights.exists(),
        )
        result = make_outcome(config, plan, run, progress, begun, ending)
        if logger is not None:
            result = result.model_copy(update={"logged": logger.logged})
            files.write_result(result)
            logger.finish(result)
            print_summary(result, directory, output)


def _continue_metrics(files: RunFiles, progress: Progress) -> None:
    """Truncate metrics.jsonl to the checkpoint, and warn if lines before it are missing."""
    files.truncate_metrics(progress.step, progress.tests[-1]["step"] if progress.tests else 0)
    if files.last_logged() < progress.logged:
        log.warning(
            "%s lacks lines before step %d, as after a power failure: curves have a gap",
            files.metrics,
            progress.logged,
        )


class Connections(NamedTuple):
    """The communicators of a process, and its device."""

    comm: Comm
    side_comm: Comm | None  # for an exchange that runs at the same time as others
    control: Control
    device: torch.device


@contextmanager
def join_workers(config: Config, plan: Plan) -> Iterator[Connections]:
    """Connect this process with the other processes of the run, for the length of the context."""
    local_rank = int(os.environ.get("LOCAL_RANK", 0)) if plan.processes > 1 else 0
    device = torch.device("cpu")
    if plan.device == "cuda":
        device = torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    asynchronous = exchanges_in_background(config["trainer"])
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
    join(plan.backend, timeout=2 * timeout if nccl else timeout, device_id=device if nccl else None)
    try:
        world = cast(dist.ProcessGroup, dist.group.WORLD)
        control = ProcessGroupControl(
            cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timeout))
        )
        refuse_different_configs(config, control)
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
    finally:
        dist.destroy_process_group()


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


def build_run(
    config: Config,
    plan: Plan,
    connections: Connections,
    data: Data,
    directory: Path,
    received: Sequence[str] = (),
) -> Run:
    """Return this process's part of the run before its first step."""
    trainer = to_dataclass(TrainerSettings, config["trainer"])
    comm, side_comm, control, device = connections
    replica = _make_replica(config, connections, data, trainer)
    steps_per_epoch = data.steps_per_epoch(plan.workers, trainer.batch_size)
    steps = total_steps(trainer.max_steps, trainer.epochs, steps_per_epoch)

    def make_scheduled(stepped: nn.Module) -> tuple[Optimizer, Schedule]:
        optimizer = make_optimizer(config["optimizer"], stepped)
        lengths = plan.workers, steps_per_epoch, steps
        return optimizer, make_schedule(config["schedule"], optimizer, *lengths)

    estimator: Estimator = make(config["estimator"], "estimator")
    optimizers = estimator.build_optimizers(replica, make_scheduled)
    clock = Clock(device)
    comm.clock = clock
    compressor = make_compressor(config["compressor"], quiet=True)  # the parent has warned
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
        recordings=GradientFiles(directory / "gradients", _in_short(config)),
        settings=trainer,
        seed=config["seed"],
        process=comm.local.start // len(comm.local),
        steps_per_epoch=steps_per_epoch,
        total_steps=steps,
        stop_requested=lambda: bool(received),
        conditions=control.gather(_conditions(config, plan))[0],
    )


def _conditions(config: Config, plan: Plan) -> dict[str, Any]:
    """Return what times depend on and a run that continues may change, by name."""
    trainer, machine = config["trainer"], describe_machine()
    return {
        "network": config["network"],
        "link": os.environ.get("GCBENCH_LINK"),
        "device": plan.device,
        "backend": plan.backend,
        "workers": plan.workers,
        "processes per machine": plan.local_processes,
        "threads": plan.threads,
        "oversubscription": plan.oversubscribed,
        "codecs": plan.codec_backend,
        "overlap": trainer["overlap"],
        "bucket_mib": trainer["bucket_mib"] if trainer["overlap"] else None,
        "processor": machine.cpu,
        "GPUs": machine.gpus,
    }


def _make_replica(
    config: Config, connections: Connections, data: Data, trainer: TrainerSettings
) -> Replica:
    """Return the model of this process, with the initial weights that all workers share."""
    torch.manual_seed(mix(config["seed"]) >> 1)
    model = make_model(config["model"], data.shape, data.outputs)
    if isinstance(model, InitializedFromData):
        model.initialize_from(_first_inputs(data, config["seed"]).cpu())
        # Processors that round differently would compute different weights from the same inputs.
        connections.control.broadcast(list(model.parameters()))
    return Replica(model, data.task, connections.comm.local, connections.device, trainer)


def _first_inputs(data: Data, seed: int) -> Tensor:
    """Return training inputs `[n, ...]`, enough for the statistics of a model's initialization."""
    samples = min(MODEL_SAMPLES, data.train_samples)
    return data.batch(epoch=0, step=0, worker=0, workers=1, batch_size=samples, seed=seed)[0]


def _in_short(config: Config) -> dict[str, Any]:
    choices = {
        k: v for k, v in config["choices"].items() if k not in ("trainer", "logger", "resume")
    }
    trainer = {k: config["trainer"][k] for k in ("gpus", "batch_size")}
    return {**choices, **trainer, "seed": config["seed"]}
