"""Checks that need torch, data and devices, made in the parent process before workers start."""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.parameters import refuse_complex, refuse_sparse, shapes_of_parameters
from gcbench.core.private import use_own_compiler_cache
from gcbench.core.share import advice_on_share, share_in_words
from gcbench.core.wrappers.virtual import compressed_share
from gcbench.runner.config.budget import PAPER
from gcbench.runner.data import Data
from gcbench.runner.launch.instantiate import make, make_compressor, make_model, user_code_error
from gcbench.runner.launch.memory import check_memory
from gcbench.runner.launch.optimization import check_optimizer
from gcbench.runner.launch.plan import Plan
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.settings.groups import TrainerSettings, is_ours
from gcbench.runner.train.pipeline import refuse_pipeline
from gcbench.runner.train.replica import is_recurrent
from gcbench.runner.train.run import Estimator
from gcbench.runner.train.schedules import steps_of_run

log = logging.getLogger("gcbench")


def check(config: RunConfig, plan: Plan, data: Data, directory: Path) -> None:
    """Raise ConfigError or ValueError for a run that cannot work; warn if it compresses little."""
    _check_place(config, plan, directory)
    check_data(config, data)
    compressor = make_compressor(config.compressor)
    estimator = make(config.estimator.as_dict(), "estimator")
    model = checked_model(config, plan, data)
    estimator.refuse(model, data, compressor, config)
    check_optimizer(config, model, compressor, estimator)
    refuse_pipeline(config.trainer, compressor, estimator, plan.every_worker_alone)
    _warn_of_little_compression(config, compressor, estimator, model, data)
    check_memory(plan, sum(p.numel() for p in model.parameters()), compressor, estimator)


def _check_place(config: RunConfig, plan: Plan, directory: Path) -> None:
    """Raise ConfigError for a folder, a package or processes that a run cannot have here."""
    directory.mkdir(parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK):
        raise ConfigError(
            f"{directory} cannot be written; type outputs=DIR or directory=DIR with one that can"
        )
    kind = config.logger.kind
    if kind == "tensorboard" and find_spec(kind) is None:
        raise ConfigError(
            f"logger={kind}: the package {kind} is not installed; type pip install {kind}, or "
            "logger=csv"
        )
    if plan.codec_backend == "compiled" or config.trainer.compile:
        use_own_compiler_cache()
    restarts = config.trainer.max_restarts
    if restarts and (plan.launcher != "local" or plan.processes == 1):
        raise ConfigError(
            f"trainer.max_restarts={restarts}: trainer.launcher={plan.launcher} cannot restart "
            "processes; type trainer.launcher=local with several, or torchrun --max-restarts"
        )


def _warn_of_little_compression(
    config: RunConfig, compressor: Compressor, estimator: Estimator, model: nn.Module, data: Data
) -> None:
    steps = steps_of_run(config.trainer, data)
    shapes = shapes_of_parameters(model).values()
    share = compressed_share(compressor, shapes, estimator.exchanges_in(steps))
    if advice := advice_on_share(share, config.as_dict()):
        log.warning("%s are compressed %s", share_in_words(share), advice)


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


def checked_model(config: RunConfig, plan: Plan, data: Data) -> nn.Module:
    """Return the model of a run; raise ConfigError for one that cannot be trained on the data.

    It has no memory for weights, but a user's own has: its constructor may need real tensors, and
    it is tried on two samples.
    """
    named, users = f"model={config.choices['model']}", not is_ours(config.model.target)
    with nullcontext() if users else torch.device("meta"):
        model = make_model(config.model.as_dict(), data.shape, data.outputs)
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(f"{named} has no parameters to train; type another model=")
    refuse_complex({name: p for name, p in model.named_parameters() if p.requires_grad})
    refuse_sparse(model)
    if users:
        _check_outputs(config, model.to(plan.device), data)
    if is_recurrent(model) and config.trainer.accumulate > 1:
        raise ConfigError(
            f"trainer.accumulate={config.trainer.accumulate}: {named} carries hidden state for "
            "every column of its batch; type trainer.accumulate=1"
        )
    return model


@torch.no_grad()
def _check_outputs(config: RunConfig, model: nn.Module, data: Data) -> None:
    """Refuse a user's model that fails on the data, or whose outputs do not fit the loss."""
    trainer, choices = config.trainer, config.choices
    name = f"model={choices['model']}"
    batch = data.batch(
        epoch=0,
        step=0,
        worker=0,
        workers=trainer.workers,
        batch_size=trainer.batch_size,
        seed=config.seed,
    )
    inputs, targets = (tensor[:2].to(next(model.parameters()).device) for tensor in batch)
    recurrent = is_recurrent(model)
    try:
        result = model.eval()(inputs, None) if recurrent else model.eval()(inputs)
    except Exception as error:
        what = f"{name} on inputs of shape {tuple(inputs.shape)} from dataset={choices['dataset']}"
        raise ConfigError(user_code_error(what, error)) from error
    outputs = result[0] if recurrent and isinstance(result, tuple) else result
    if not isinstance(outputs, torch.Tensor):
        raise ConfigError(
            f"{name} returns a {type(outputs).__name__}; let its forward return a tensor of outputs"
        )
    if data.task == "regression":
        fits = outputs.numel() == targets.numel()
    else:
        fits = (
            outputs.dim() > 1
            and outputs.shape[:-1].numel() == targets.numel()
            and outputs.shape[-1] >= data.outputs
        )
    if not fits:
        wanted = (
            (*targets.shape, data.outputs) if data.task != "regression" else tuple(targets.shape)
        )
        raise ConfigError(
            f"{name} returns outputs of shape {tuple(outputs.shape)} where "
            f"dataset={choices['dataset']} needs {wanted}; let it take an argument outputs, which "
            f"is {data.outputs} here, or type another dataset="
        )
