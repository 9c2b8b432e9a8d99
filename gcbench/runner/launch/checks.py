"""Checks that need torch, data and devices, made in the parent process before workers start."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from pathlib import Path

from torch import nn

from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.methods.matrices import shapes_of_parameters
from gcbench.core.private import use_own_compiler_cache
from gcbench.core.share import advice_on_share, share_in_words
from gcbench.core.wrappers.virtual import compressed_share
from gcbench.runner.data import Data
from gcbench.runner.launch.data_checks import check_data
from gcbench.runner.launch.instantiate import make, make_compressor
from gcbench.runner.launch.memory import check_memory
from gcbench.runner.launch.model_checks import checked_model
from gcbench.runner.launch.optimization import check_optimizer
from gcbench.runner.launch.plan import Plan
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.pipeline import refuse_pipeline
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
