"""Estimates of how long runs take, from earlier runs of the same size or else a few gradients.

Of two earlier runs the faster one counts, as the time of a paused run includes the pause.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median_low
from typing import Any

import torch

from gcbench.core.conf import Config
from gcbench.core.errors import ConfigError
from gcbench.runner.data.protocol import Data
from gcbench.runner.identity import digest
from gcbench.runner.launch.instantiate import make_data, make_model
from gcbench.runner.launch.plan import Machine, make_plan
from gcbench.runner.records.clock import Clock
from gcbench.runner.records.schema import Result
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.settings.groups import TrainerSettings
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.schedules import total_steps

START_SECONDS = 5.0  # for imports, data and process groups

Size = tuple[Any, ...]


class Estimates:
    """Estimates of the seconds that runs take; each size of run is measured only once.

    The start of a run without an earlier one takes `start_seconds`.
    """

    def __init__(self, results: Iterable[Result], start_seconds: float = START_SECONDS) -> None:
        self._start_seconds = start_seconds
        self._past: dict[Size, list[Result]] = {}
        self._past_work: dict[Size, list[Result]] = {}
        for result in results:
            if result.status == "done" and result.steps_taken:
                self._past.setdefault(_size(result.config, result.choices), []).append(result)
                work = _work(result.config, result.choices, result.device)
                self._past_work.setdefault(work, []).append(result)
        self._tried: dict[Size, tuple[float, int]] = {}

    def seconds(self, config: RunConfig) -> float | None:
        """Return the expected seconds, or None if no step can be measured.

        If data or model are missing, the run itself will say why.
        """
        plain = config.as_dict()
        size = _size(plain, config.choices)
        past = _alike(self._past.get(size, []), plain)
        if past:
            step_seconds = median_low(map(_step_seconds, past))
            steps_per_epoch = _steps_per_epoch(past[0], plain)
        else:
            try:
                if size not in self._tried:
                    self._tried[size] = _measure(config)
                step_seconds, steps_per_epoch = self._tried[size]
            except (ValueError, OSError, RuntimeError):
                return None
        start = START_SECONDS if past else self._start_seconds
        return start + step_seconds * _steps(plain, steps_per_epoch)

    def core_seconds(self, config: Config, device: str) -> float | None:
        """Return the core seconds, or GPU seconds, expected from earlier runs on `device`.

        None if none had this model, data set, number of workers, batch size and precision.
        """
        past = _alike(self._past_work.get(_work(config, config["choices"], device), []), config)
        if not past:
            return None
        steps = _steps(config, _steps_per_epoch(past[0], config))
        return median_low(
            (START_SECONDS + _step_seconds(result) * steps) * result.cores for result in past
        )


def _alike(past: list[Result], config: Config) -> list[Result]:
    """Return the runs with the same compressor, or all of them if there are none."""
    compressor = config["choices"]["compressor"]
    return [result for result in past if result.choices["compressor"] == compressor] or past


def _steps(config: Config, steps_per_epoch: int) -> int:
    trainer = TrainerSettings.of(config["trainer"])
    return total_steps(trainer.max_steps, trainer.epochs, steps_per_epoch)


def _steps_per_epoch(result: Result, config: Config) -> int:
    """Return the steps of an epoch, as a run had them; of a data set that is typed longer, more."""
    assert result.steps_per_epoch is not None  # as the run is done
    length = "size" if result.tokens_per_sample else "samples"
    before, now = (of["dataset"].get(length) for of in (result.config, config))
    return round(result.steps_per_epoch * (now / before if before and now else 1))


def _work(config: Config, choices: dict[str, str], device: str | None) -> Size:
    """Return the size of a run on a device, regardless of its number of threads."""
    trainer = config["trainer"]
    asked = (trainer.get(key) for key in ("workers", "batch_size", "precision"))
    return digest(config["model"]), choices["dataset"], device, *asked


def _size(config: Config, choices: dict[str, str]) -> Size:
    """Return the size of a run with its number of threads, regardless of its device."""
    return *_work(config, choices, None), config["trainer"].get("threads")


def _step_seconds(result: Result) -> float:
    """Return the seconds of a step with its share of tests, without the start of the run."""
    return max(0.0, result.duration - START_SECONDS) / result.steps_taken


def _measure(config: RunConfig) -> tuple[float, int]:
    """Return the seconds per step, without compression and tests, and the steps per epoch."""
    plan = make_plan(config, Machine.detect())
    if plan.device != "cpu":
        raise ConfigError("a device is not woken up for an estimate")
    trainer = config.trainer
    data, before = make_data(config), torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        seconds = _time_workers(config, trainer, data, plan.workers)
    finally:
        torch.set_num_threads(before)
    rows = plan.workers // plan.processes
    return rows * seconds, data.steps_per_epoch(plan.workers, trainer.batch_size)


def _time_workers(config: RunConfig, trainer: TrainerSettings, data: Data, workers: int) -> float:
    """Return the seconds that one worker's forward and backward pass take, the least of three."""
    replica = Replica(
        make_model(config.model.as_dict(), data.shape, data.outputs),
        data.task,
        range(1),
        torch.device("cpu"),
        trainer,
    )
    batch = data.batch(
        epoch=0, step=0, worker=0, workers=workers, batch_size=trainer.batch_size, seed=0
    )
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        replica.begin()
        replica.backward(0, batch, (0, 0), Clock(replica.device))
        seconds.append(time.perf_counter() - start)
    return min(seconds)
