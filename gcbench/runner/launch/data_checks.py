"""What a data set refuses of a run, and warns of."""

from __future__ import annotations

import logging

from gcbench.core.errors import ConfigError
from gcbench.runner.config.budget import PAPER
from gcbench.runner.data import Data
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.settings.trainer import TrainerSettings
from gcbench.runner.train.schedules import steps_of_run

log = logging.getLogger("gcbench")


def check_data(config: RunConfig, data: Data) -> None:
    """Raise ConfigError for a run that the data is too small for, or of another kind than it asks.

    Logs a warning if the run ends in its warm-up.
    """
    _check_samples(config.trainer, data)
    _check_tests(config, data)
    _check_label_smoothing(config, data)
    _check_recordings(config.trainer, data)
    _warn_of_long_warmup(config, data)


def _check_samples(trainer: TrainerSettings, data: Data) -> None:
    workers, batch_size, samples = trainer.workers, trainer.batch_size, data.train_samples
    if workers > samples:
        raise ConfigError(
            f"trainer.workers={workers}: the data has {samples} training samples, fewer than "
            f"workers; type trainer.workers={samples} or fewer"
        )
    if data.steps_per_epoch(workers, batch_size) < 1:
        largest = max(
            (b for b in range(1, batch_size) if data.steps_per_epoch(workers, b)), default=None
        )
        most = max(
            (w for w in range(1, workers) if data.steps_per_epoch(w, batch_size)), default=None
        )
        advice = [f"trainer.batch_size={largest}{' or less' * (largest > 1)}"] if largest else []
        advice += [f"trainer.workers={most}{' or fewer' * (most > 1)}"] if most else []
        raise ConfigError(
            f"trainer.batch_size={batch_size}: a worker's shard has {samples // workers} samples, "
            f"too few for one batch; type {', or '.join(advice) or 'another dataset='}"
        )
    if trainer.eval_every and data.test_batches(trainer.eval_batch_size) < 1:
        raise ConfigError(
            f"trainer.eval_batch_size={trainer.eval_batch_size}: the test part is too short for "
            "one batch; type a smaller number, or trainer.eval_every=null in its place"
        )


def _check_tests(config: RunConfig, data: Data) -> None:
    trainer = config.trainer
    target = trainer.target
    if target is not None and trainer.eval_every is None:
        raise ConfigError(
            f"trainer.target={target:g} trainer.eval_every=null: there is no test to reach it; "
            "type trainer.target=null, or a number of epochs"
        )
    if not trainer.tta:
        return
    if data.task != "classification" or data.kind != "image":
        raise ConfigError(
            f"trainer.tta=true: dataset={config.choices['dataset']} has no images to mirror and "
            "shift; type trainer.tta=false"
        )
    if trainer.eval_every is None:
        raise ConfigError(
            "trainer.tta=true trainer.eval_every=null: there is no test to augment; type "
            "trainer.tta=false, or a number of epochs"
        )


def _check_label_smoothing(config: RunConfig, data: Data) -> None:
    smoothing = config.trainer.label_smoothing
    if smoothing and data.task == "regression":
        raise ConfigError(
            f"trainer.label_smoothing={smoothing:g}: dataset={config.choices['dataset']} has "
            "numbers to predict, no labels; type trainer.label_smoothing=0"
        )


def _check_recordings(trainer: TrainerSettings, data: Data) -> None:
    steps = steps_of_run(trainer, data)
    for step in trainer.record_gradients or []:
        if step >= steps:
            raise ConfigError(
                f"trainer.record_gradients={trainer.record_gradients}: step {step} never comes, "
                f"as the last one is {steps - 1}; type steps up to that"
            )


def _warn_of_long_warmup(config: RunConfig, data: Data) -> None:
    """Warn of a run that ends in its warm-up; the two or three steps of a budget are meant to."""
    trainer = config.trainer
    warmup_epochs = config.schedule.warmup_epochs
    per_epoch = data.steps_per_epoch(trainer.workers, trainer.batch_size)
    epochs = steps_of_run(trainer, data) / per_epoch
    is_trained = config.choices["budget"] == PAPER or trainer.max_steps is None
    if is_trained and warmup_epochs >= epochs:
        log.warning(
            f"schedule.warmup_epochs={warmup_epochs:g}: the run ends after {epochs:.2g} epochs, "
            f"before the learning rate reaches optimizer.lr={config.optimizer.lr:g}; type "
            "more trainer.epochs, or schedule.warmup_epochs=0"
        )
