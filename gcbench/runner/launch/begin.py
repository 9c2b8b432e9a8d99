"""The directory of a run that begins or continues: what is cleared, and what is told."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.runner.config.run_file import write_run_file
from gcbench.runner.data import Data
from gcbench.runner.launch import slurm
from gcbench.runner.launch.directory import extends
from gcbench.runner.launch.failure import forget_notes
from gcbench.runner.records.environment import slurm_job
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.gradients import recording_path
from gcbench.runner.records.result import Begun
from gcbench.runner.records.schema import Extended, Resharded
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.checkpoints import Checkpoints, last_step
from gcbench.runner.train.writing import CheckpointError

log = logging.getLogger("gcbench")


def prepare_directory(config: RunConfig, data: Data, files: RunFiles, anew: bool) -> Begun:
    """Continue from a checkpoint, or begin anew with an empty record; return the start.

    To begin anew, the files of an earlier run are renamed and its checkpoints are removed.
    """
    checkpoints = files.checkpoints
    before, extended, resharded = None, None, list[Resharded]()
    resumes = was_begun_by_this_job(files) or (config.resume.mode == "auto" and not anew)
    if checkpoints.exists() and not checkpoints.is_dir():
        raise ConfigError(f"{checkpoints} is not a folder; move it away, as checkpoints go there")
    forget_notes(files.directory)
    if resumes and last_step(files.checkpoints):
        _check_latest(config, data, checkpoints)
        _warn_of_passed_steps(config, files)
        before = files.read_start()
        resharded = _resharded(config, before, checkpoints)
        if (result := files.read_result()) and extends(config, result):
            assert result.steps is not None and result.epochs is not None  # as the run is done
            extended = Extended(from_step=result.steps, from_epoch=result.epochs)
            log.info(
                "extending the run in %s, which ended after step %d",
                files.directory,
                result.steps,
            )
            files.set_aside(extends=True)
        else:
            log.info(
                "continuing from the checkpoint in %s; type resume=never to start anew", checkpoints
            )
    else:
        _clear(checkpoints)
        files.set_aside()
    begun = Begun.here(before, extended, resharded)
    kept = config.as_dict()
    if before and not extended and _workers(before) == config.trainer.workers:
        kept = before["config"]
    files.write_config(write_run_file(config.typed))
    start = begun.as_json(kept)
    if start != before:
        files.write_start(start)
    return begun


def was_begun_by_this_job(files: RunFiles) -> bool:
    """Return whether this is the requeued Slurm job that began this run, and so continues it."""
    begun = files.read_start() if slurm.was_requeued(os.environ) else None
    return begun is not None and begun.get("slurm_job") == slurm_job()


def _clear(checkpoints: Path) -> None:
    """Remove the checkpoints of an earlier run, so that this one does not continue from them."""
    if checkpoints.is_symlink() and any(checkpoints.iterdir()):
        raise ConfigError(
            f"{checkpoints} is a link to {checkpoints.resolve()}, whose checkpoints would be "
            "removed; empty that folder, or remove the link"
        )
    try:
        shutil.rmtree(checkpoints)
    except FileNotFoundError:
        pass
    except OSError as error:
        if any(checkpoints.glob("step-*")):
            raise ConfigError(
                f"{checkpoints} of an earlier run cannot be removed ({error.strerror}); remove it, "
                "or type another directory="
            ) from error


def _resharded(
    config: RunConfig, before: dict[str, Any] | None, checkpoints: Path
) -> list[Resharded]:
    """Return all changes of the number of workers when the run was continued, including now."""
    if before is None:
        return []
    changes = [Resharded.model_validate(where) for where in before.get("resharded", [])]
    step, workers = last_step(checkpoints), _workers(before)
    if changes and changes[-1].from_step == step:  # that start has left no checkpoint since
        workers = changes.pop().workers
    if workers != config.trainer.workers:
        changes.append(Resharded(from_step=step, workers=workers))
    return changes


def _workers(before: dict[str, Any]) -> int:
    workers: int = before["config"]["trainer"]["workers"]
    return workers


def _warn_of_passed_steps(config: RunConfig, files: RunFiles) -> None:
    """Warn of gradients that would be recorded only if the run began anew."""
    begin = last_step(files.checkpoints)
    passed = [
        step
        for step in config.trainer.record_gradients or []
        if step < begin and not recording_path(files.gradients, step).exists()
    ]
    if passed:
        log.warning(
            "trainer.record_gradients=%s: not recorded, as the run continues from step %d; "
            "rerun=true records them",
            format_value(passed),
            begin,
        )


def _check_latest(config: RunConfig, data: Data, checkpoints: Path) -> None:
    trainer = config.trainer
    steps_per_epoch = data.steps_per_epoch(trainer.workers, trainer.batch_size)
    try:
        Checkpoints.of(config, checkpoints).check(config, steps_per_epoch)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
