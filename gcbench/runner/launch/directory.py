"""The directory of a run: whose it is, what is cleared as it begins or continues, and told."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gcbench.core.conf import Config
from gcbench.core.errors import ConfigError
from gcbench.core.fields import format_value
from gcbench.runner.config.typed import write_run_file
from gcbench.runner.data import Data
from gcbench.runner.differences import CHOICE_GROUPS, Differences, differences, format_differences
from gcbench.runner.identity import ABSENT, BOOKKEEPING, EXECUTION, LENGTH
from gcbench.runner.launch import slurm
from gcbench.runner.launch.failure import forget_notes
from gcbench.runner.launch.optimization import fits_one_length
from gcbench.runner.launch.same import ran_on_another_link
from gcbench.runner.records.environment import slurm_job
from gcbench.runner.records.files import ENDED, RunFiles
from gcbench.runner.records.gradients import recording_path
from gcbench.runner.records.result import Begun
from gcbench.runner.records.schema import Extended, Resharded, Result
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.checkpoints import CheckpointError, Checkpoints, last_step
from gcbench.runner.train.schedules import total_steps

log = logging.getLogger("gcbench")

# Keys that may differ between the parts of a run that was continued.
MAY_CHANGE = BOOKKEEPING | EXECUTION | {"workers"}


def refuse_other_run(config: RunConfig, files: RunFiles) -> None:
    """Raise ConfigError if the directory holds a run with another configuration."""
    result = result_in(files)
    if result is not None and result.status in ENDED:
        _refuse_other_result(config, files, result)
    elif config.resume.mode == "auto" and last_step(files.checkpoints):
        _refuse_other_start(config, files, "resume=never")


def _refuse_other_start(config: RunConfig, files: RunFiles, anew: str) -> None:
    """Raise ConfigError if the run that was begun last had another configuration."""
    before = files.read_start()
    if before is None:
        raise ConfigError(
            f"{files.directory} has checkpoints, but no whole start.json that says of which "
            f"run; type {anew} to start anew there, or another directory="
        )
    if differs := _differences(before["config"], config, MAY_CHANGE):
        raise ConfigError(
            f"{files.directory} holds an unfinished run with another configuration "
            f"({_describe(differs, before['config']['choices'], config)}); type what it had to "
            f"continue it, {anew} to start anew there, or another directory="
        )


def result_in(files: RunFiles) -> Result | None:
    """Return the result in the run's directory, or None. Raises ConfigError if it is damaged."""
    try:
        return files.read_result()
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _refuse_other_result(config: RunConfig, files: RunFiles, result: Result) -> None:
    extended = extends(config, result)
    directory, before = files.directory, result.config
    differs = differences(before, config.as_dict(), BOOKKEEPING)
    if extended:
        differs = _differences(before, config, MAY_CHANGE | LENGTH)
    if differs and result.extended and not _differences(before, config, BOOKKEEPING | LENGTH):
        longer = ", ".join(f"{key}={format_value(a)}" for key, (a, _) in differs.items())
        raise ConfigError(
            f"{directory} holds this run, which was extended to {longer}; type that to see it, or "
            "rerun=true to run the shorter one there (the files keep their content under other "
            "names)"
        )
    if differs:
        raise ConfigError(
            f"{directory} holds a finished run with another configuration "
            f"({_describe(differs, result.choices, config)}); type another directory=, or "
            "rerun=true to run this one there (the files keep their content under other names)"
        )
    if ran_on_another_link(result) and not extended:
        ran_on = result.network.link if result.network else None
        raise ConfigError(
            f"{directory} holds a run that was finished {_on(ran_on)}, and this one would be "
            f"{_on(os.environ.get('GCBENCH_LINK'))}; type another name=, or rerun=true"
        )
    if extended and fits_one_length(config.schedule):
        raise ConfigError(
            f"{directory} holds a run that cannot be extended: "
            f"schedule._target_={config.schedule.target} was made for its {result.steps} "
            "steps; type another directory=, or rerun=true to start anew there"
        )
    if extended and last_step(files.checkpoints) > (result.steps or 0):
        _refuse_other_start(config, files, "rerun=true")  # an extension that was killed
    if extended and last_step(files.checkpoints) < (result.steps or 0):
        length = differences(before, config.as_dict(), BOOKKEEPING)
        raise ConfigError(
            f"{directory} holds a run that cannot be extended ({format_differences(length)}): the "
            "state at its end was not kept, as trainer.keep_weights=true does; type another "
            "directory=, or rerun=true to start anew there"
        )


def _on(link: str | None) -> str:
    return f"on netlab's link of {link}" if link else "without netlab"


def extends(config: RunConfig, result: Result) -> bool:
    """Return whether `config` asks for more steps than a finished run has taken.

    Such a run continues from its last step.
    """
    if result.status != "done" or config.resume.mode != "auto":
        return False
    trainer = config.trainer
    assert result.steps is not None and result.steps_per_epoch is not None  # as the run is done
    same_target = trainer.stop_at in (None, result.config["trainer"].get("stop_at"))
    reached = result.target is not None and result.target.step is not None
    if trainer.stop_at is not None and same_target and reached:
        return False  # it has ended where this one would
    return total_steps(trainer.max_steps, trainer.epochs, result.steps_per_epoch) > result.steps


def _differences(before: Config, now: RunConfig, trainer_keys: Collection[str]) -> Differences:
    """Return the differences, except in the emulated network, which affects times only."""
    return differences({**before, "network": {}}, {**now.as_dict(), "network": {}}, trainer_keys)


def _describe(differs: Differences, was: dict[str, str], config: RunConfig) -> str:
    """Return the differences as a phrase for an error.

    Keys that differ only because the model, data set or compressor does are left out.
    """
    asked = config.choices
    other = {
        group: (was[group], asked[group]) for group in CHOICE_GROUPS if was[group] != asked[group]
    }
    keys = {key: values for key, values in differs.items() if key.partition(".")[0] not in other}
    if "compressor" in other:
        keys = {key: values for key, values in keys.items() if ABSENT not in values}
    return format_differences({**other, **keys})


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
