"""The work of every process of a run: join, build, train, report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from gcbench.console import console
from gcbench.launch.building import build_run
from gcbench.launch.codecs import choose_codecs
from gcbench.launch.connections import join_workers
from gcbench.launch.instantiate import make_data
from gcbench.launch.local import collect_signals
from gcbench.launch.meeting import restarts
from gcbench.launch.memory import keep_freed_memory
from gcbench.launch.outcome import Ending, make_outcome
from gcbench.launch.plan import Plan
from gcbench.launch.watch import Place, watch
from gcbench.records import ProgressDisplay, RunFiles, print_summary, start_logger
from gcbench.records.result import Begun
from gcbench.settings.config import RunConfig
from gcbench.train.checkpoints import Checkpoints
from gcbench.train.loop import train
from gcbench.train.run import Progress, Run
from gcbench.train.weights import save_weights

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
            print_summary(result, directory, output)


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
