"""The process that the user started: it checks a run, starts it and follows it to its end."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from gcbench.core.compressor import MethodError
from gcbench.core.deadline import within
from gcbench.core.errors import ConfigError
from gcbench.runner.config.errors import RunDiverged, RunFailed
from gcbench.runner.console import console
from gcbench.runner.data import Data
from gcbench.runner.differences import describe_choices
from gcbench.runner.launch import slurm
from gcbench.runner.launch.checks import check
from gcbench.runner.launch.directory import (
    extends,
    prepare_directory,
    refuse_other_run,
    result_in,
    was_begun_by_this_job,
)
from gcbench.runner.launch.failure import Failure, failure_of, first_failure
from gcbench.runner.launch.instantiate import make_data
from gcbench.runner.launch.local import Interrupted, WorkerFailed, collect_signals, run_processes
from gcbench.runner.launch.lock import Lock, lock_directory
from gcbench.runner.launch.meeting import security_notice
from gcbench.runner.launch.plan import JOINING, Machine, Plan, make_plan
from gcbench.runner.launch.same import find_same_run
from gcbench.runner.launch.worker import work
from gcbench.runner.records.files import ENDED, RunFiles, WriteError
from gcbench.runner.records.metrics import find_target
from gcbench.runner.records.result import Begun, make_result
from gcbench.runner.records.schema import Result
from gcbench.runner.records.summary import print_summary
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.checkpoints import CheckpointError

log = logging.getLogger("gcbench")

# For the run's directory to answer after a failure: a busy disk takes a while, and one on a machine
# behind a dead link never answers.
FILES_SECONDS = 30.0


def start(config: RunConfig, directory: str, in_sweep: bool = False) -> Result | None:
    """Run a configuration to its end, and return its result; None on other ranks than the first.

    Raises ConfigError before anything has started, RunFailed if the run fails (RunDiverged if it
    diverges), KeyboardInterrupt if it, or its sweep, is stopped. In a sweep, a run that has already
    finished, here or under another name, is skipped without showing its result.
    """
    path = Path(directory).resolve()
    machine = Machine.detect()
    plan = replace(make_plan(config, machine), quiet=in_sweep and not config.verbose)
    with slurm.torchrun_environment(path) if plan.launcher == "slurm" else nullcontext():
        return Start.of(config, plan, RunFiles(path), in_sweep).result()


@cache
def _warn_once(notice: str) -> None:
    """Warn of what is true of all rows of a sweep."""
    log.warning(notice)


@dataclass(frozen=True)
class Start:
    """One start of a run by this process, which may be one of several that were started with it."""

    config: RunConfig
    plan: Plan
    files: RunFiles
    in_sweep: bool
    rank: int  # of this process; 0 for one that starts the others itself
    anew: bool  # whether what is there is run again

    @classmethod
    def of(cls, config: RunConfig, plan: Plan, files: RunFiles, in_sweep: bool) -> Start:
        rank = int(os.environ["RANK"]) if plan.launcher in JOINING else 0
        anew = config.rerun and not was_begun_by_this_job(files)
        return cls(config, plan, files, in_sweep, rank, anew)

    def result(self) -> Result | None:
        """Return the result of the run; None on other ranks than the first."""
        if not self.anew and (finished := self._finished()):
            return finished
        if self.in_sweep and not self.anew:
            same = find_same_run(self.config, self.files.directory)
            if same and (finished := find_finished(self.config, RunFiles(same), say=False)):
                return finished
        with lock_directory(self.files.directory) if self.rank == 0 else nullcontext() as lock:
            # Another command may have finished the run while this one waited for the lock.
            alone = self.plan.launcher not in JOINING
            if alone and not self.anew and (finished := self._finished()):
                return finished
            return self._train(lock)

    def _finished(self) -> Result | None:
        refuse_other_run(self.config, self.files)
        return find_finished(self.config, self.files, self.rank == 0 and not self.in_sweep)

    def _train(self, lock: Lock | None) -> Result | None:
        config, plan, files = self.config, self.plan, self.files
        if self.rank == 0 and not self.in_sweep:
            log.info(_start_notice(config, plan, files.directory))
        if plan.launcher not in JOINING or os.environ["LOCAL_RANK"] == "0":
            data = _check(config, plan, files.directory)  # downloads what is missing, once per node
        if self.rank == 0:
            if notice := plan.notice():
                (_warn_once if self.in_sweep else log.warning)(notice)
            _warn_of_network(plan.processes == plan.local_processes)
            begun = prepare_directory(config, data, files, self.anew)
        else:
            begun = Begun.here()  # not written to start.json
        # The parent of workers collects signals while they live; this process does so until a
        # failure is recorded, as torchrun and srun send SIGTERM to those that outlive another.
        signals = nullcontext(list[str]()) if plan.starts_processes else collect_signals()
        with signals as received:
            stopped_by = self._run(begun, lock, received)
        if self.rank != 0:
            return None
        result = self._done(stopped_by)
        # A signal that came after the last step has not stopped the run, but stops the sweep. A job
        # of Slurm is not queued again for points that it may not have.
        if self.in_sweep and stopped_by not in (None, slurm.REQUEUE.name):
            raise KeyboardInterrupt
        return result

    def _run(self, begun: Begun, lock: Lock | None, received: Sequence[str]) -> str | None:
        """Run the workers; return the name of the signal that stopped them, or None."""
        config, plan, files = self.config, self.plan, self.files
        arguments = (config, plan, files.directory, begun)
        try:
            if plan.starts_processes:
                run_processes(work, arguments, plan.processes, config.trainer.max_restarts, lock)
            else:
                work(*arguments, received)
        except Interrupted as interrupted:
            if not _is_written_since(files, begun.started):
                files.write_result(
                    make_result(
                        config,
                        begun,
                        "interrupted",
                        f"stopped by {interrupted.signal_name} before a checkpoint",
                    )
                )
            return interrupted.signal_name
        except WorkerFailed as failure:
            who = f"worker {failure.rank}"
            if _has_ended_since(files, begun):
                log.warning("%s failed when the run had ended: %s", who, failure.reason)
                return None
            _record_failure(config, begun, files, f"{who}: {failure.reason}")
            if not _is_for_user(failure.reason):
                print(failure.traceback_text, file=sys.stderr)
            raise RunFailed(f"{who} failed: {failure.reason}") from None
        except ConfigError:  # such as configurations that differ between processes
            raise
        except Exception as error:
            here = failure_of(error, self.rank)
            if self.rank == 0 and within(
                FILES_SECONDS, partial(_has_ended_since, files, begun), False
            ):
                log.warning("the run had ended: %s", here.reason)
                return None
            if not here.is_echo and not _is_for_user(here.reason):
                print(here.traceback_text, file=sys.stderr)
            note = partial(_note_failure, config, plan, files, begun, here)
            first = within(FILES_SECONDS, note, None)
            if first is None:
                log.error("%s does not answer, so that no result is written there", files.directory)
            who = f"worker {(first or here).rank}" if plan.processes > 1 else "the run"
            raise RunFailed(f"{who} failed: {(first or here).reason}") from None
        return slurm.REQUEUE.name if slurm.REQUEUE.name in received else next(iter(received), None)

    def _done(self, stopped_by: str | None) -> Result:
        """Return the result that the workers have written; raise an error for a run not done."""
        result = self.files.read_result()
        assert result is not None
        if result.status == "interrupted":
            if stopped_by == slurm.REQUEUE.name:
                slurm.requeue()
            never = self.config.resume.mode == "never"
            begins = ["rerun=true"] * self.anew + ["resume=never"] * never
            without = f" without {' and '.join(begins)}" if begins else ""
            log.info("type the same command%s to continue the run", without)
            raise KeyboardInterrupt
        if result.status != "done":
            error = RunDiverged if result.status == "diverged" else RunFailed
            raise error(f"the run {result.status}: {result.reason}")
        return result


def _start_notice(config: RunConfig, plan: Plan, directory: Path) -> str:
    workers = f"{plan.workers} worker{'s' * (plan.workers > 1)} on {plan.device}"
    return f"{describe_choices(config.choices)}: {workers}, in {directory}"


@cache  # once for all rows of a sweep
def _warn_of_network(on_one_machine: bool) -> None:
    if notice := security_notice(on_one_machine):
        log.warning(notice)


def find_finished(config: RunConfig, files: RunFiles, say: bool) -> Result | None:
    """Return the result of a run that needs no more steps; None if there is none."""
    result = result_in(files)
    if result is not None and result.status == "diverged":
        raise RunDiverged(
            f"the run diverged before: {result.reason}; type rerun=true to run it again"
        )
    if result is None or result.status != "done" or extends(config, result):
        return None
    if (target := config.trainer.goal) is not None:
        tests = [line for line in files.read_metrics() if line["event"] == "test"]
        result = result.model_copy(update={"target": find_target(tests, target)})
    if say:
        print_summary(result, files.directory, console(), config.verbose)
        log.info(
            "this run was finished on %s, shown above; type rerun=true to run it again",
            result.finished,
        )
    trainer = config.trainer
    for key, asked, what, there in (
        ("tta", trainer.tta, "test-time augmentation", "tta_loss" in (result.test or {})),
        ("keep_weights", trainer.keep_weights, "weights.pt", files.weights.exists()),
    ):
        if asked and not there:
            log.warning(
                "trainer.%s=true: %s was finished without %s; type rerun=true to run it again",
                key,
                files.directory,
                what,
            )
    return result


def _check(config: RunConfig, plan: Plan, path: Path) -> Data:
    """Check the run, log warnings, and return its data; raise ConfigError for a ValueError.

    A ValueError of the data, the checks or a method is a mistake that the user can correct.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            data = make_data(config)
            check(config, plan, data, path)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            log.warning(warning.message)
    return data


def _note_failure(
    config: RunConfig, plan: Plan, files: RunFiles, begun: Begun, here: Failure
) -> Failure:
    """Return the failure that ended the run; record it if that is up to this process."""
    if plan.processes == 1:
        _record_failure(config, begun, files, here.reason)
        return here
    first, records = first_failure(here, plan.processes, files.directory)
    if records:
        _record_failure(config, begun, files, f"worker {first.rank}: {first.reason}")
    return first


def _record_failure(config: RunConfig, begun: Begun, files: RunFiles, reason: str) -> None:
    """Write the result of a failed run; if it cannot be written, log why and keep the reason."""
    try:
        files.write_result(make_result(config, begun, "failed", reason))
    except OSError as error:
        log.error(error.strerror)


def _is_for_user(reason: str) -> bool:
    """Return whether a failure's reason is a message for the user, who needs no traceback."""
    return reason.partition(":")[0] in (
        kind.__name__ for kind in (ConfigError, CheckpointError, MethodError, WriteError)
    )


def _has_ended_since(files: RunFiles, begun: Begun) -> bool:
    """Return whether the run has reached its end, which no failure after it undoes.

    A worker may be killed while W&B finishes, or be unable to print the summary.
    """
    result = files.read_result()
    if result is None or result.extended != begun.extended:  # that of the run that is extended
        return False
    return result.status in ENDED and result.started >= begun.started


def _is_written_since(files: RunFiles, started: str) -> bool:
    result = files.read_result()
    return result is not None and result.started >= started
