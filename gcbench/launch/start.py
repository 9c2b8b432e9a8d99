"""From a checked configuration to a finished run, in the process that the user started."""

from __future__ import annotations

import logging
import shutil
import sys
import traceback
import warnings
from pathlib import Path

from rich.console import Console

from gcbench.config import Config, ConfigError, RunFailed, fingerprint
from gcbench.launch.checks import check
from gcbench.launch.instantiate import make_data
from gcbench.launch.local import Interrupted, WorkerFailed, run_processes
from gcbench.launch.plan import Machine, Plan, plan
from gcbench.launch.worker import work
from gcbench.records import RunFiles, print_summary
from gcbench.records.result import now, unfinished
from gcbench.train.checkpoints import CheckpointError, Checkpoints

log = logging.getLogger("gcbench")


def start(config: Config, directory: str, in_sweep: bool = False) -> None:
    """Raises ConfigError before anything has started, RunFailed when the run failed, KeyboardInterrupt when it was stopped.

    Of a sweep, what was finished before is passed over in silence.
    """
    path = Path(directory).resolve()
    machine = Machine.here()
    chosen = plan(config, machine)
    first = machine.environment.get("RANK", "0") == "0"
    files = RunFiles(path)
    if not config["rerun"] and _finished_before(files, first and not in_sweep):
        return
    if chosen.launcher != "torchrun" or machine.environment["LOCAL_RANK"] == "0":
        _check(config, chosen, path)  # downloads what is missing, once a node
    if first:
        if notice := chosen.notice():
            log.warning(notice)
        _clear_the_way(config, files)
    _run(config, chosen, files, first)
    if first:
        _raise_unless_done(files)


def _finished_before(files: RunFiles, say: bool) -> bool:
    result = files.read_result()
    if result is not None and result["status"] == "diverged":
        raise RunFailed(f"the run diverged before: {result['reason']}; type rerun=true to run it again")
    if result is None or result["status"] != "done":
        return False
    if say:
        print_summary(result, files.directory, Console())
        log.info("this run was finished on %s, shown above; type rerun=true to run it again", result["finished"])
    return True


def _check(config: Config, chosen: Plan, path: Path) -> None:
    """A ValueError from data, model or method is the user's to mend, in the words of whoever raised it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            check(config, chosen, make_data(config), path)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            log.warning(warning.message)


def _clear_the_way(config: Config, files: RunFiles) -> None:
    """Continue from a checkpoint, or begin with an empty record; what an earlier run left keeps its content."""
    checkpoints = files.directory / "checkpoints"
    resumes = config["resume"]["mode"] == "auto" and not config["rerun"]
    if resumes and any(checkpoints.glob("step-*/manifest.json")):
        _check_latest(config, checkpoints)
        log.info("continuing from the checkpoint in %s; type resume=never to start anew", checkpoints)
        return
    files.set_aside()
    shutil.rmtree(checkpoints, ignore_errors=True)


def _check_latest(config: Config, checkpoints: Path) -> None:
    try:
        Checkpoints(checkpoints, config["trainer"]["checkpoint_keep"], fingerprint(config)).check(config["trainer"]["gpus"])
    except CheckpointError as error:
        raise ConfigError(str(error)) from error


def _run(config: Config, chosen: Plan, files: RunFiles, first: bool) -> None:
    started = now()
    arguments = (config, chosen, str(files.directory), started)
    try:
        if chosen.launcher == "local" and chosen.processes > 1:
            run_processes(work, arguments, chosen.processes)
        else:
            work(*arguments)
    except Interrupted as interrupted:
        if not _written_since(files, started):
            files.write_result(
                unfinished(
                    config,
                    "interrupted",
                    f"stopped by {interrupted.signal_name} before a checkpoint",
                    started,
                )
            )
    except WorkerFailed as failure:
        files.write_result(unfinished(config, "failed", failure.reason, started))
        print(failure.traceback_text, file=sys.stderr)
        raise RunFailed(f"worker {failure.rank} failed: {failure.reason}") from None
    except Exception as error:
        if first:
            files.write_result(unfinished(config, "failed", f"{type(error).__name__}: {error}", started))
        traceback.print_exc()
        raise RunFailed(f"the run failed: {type(error).__name__}: {error}") from None


def _written_since(files: RunFiles, started: str) -> bool:
    result = files.read_result()
    return result is not None and result["started"] >= started


def _raise_unless_done(files: RunFiles) -> None:
    result = files.read_result()
    assert result is not None
    if result["status"] == "interrupted":
        raise KeyboardInterrupt
    if result["status"] != "done":
        raise RunFailed(f"the run {result['status']}: {result['reason']}")
