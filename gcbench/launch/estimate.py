"""Estimates of how long runs take: from earlier ones of their size, else from a few gradients."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch

from gcbench import settings
from gcbench.config import Config, ConfigError
from gcbench.launch.instantiate import make_data, make_model, to_dataclass
from gcbench.launch.plan import Machine, plan
from gcbench.records.clock import Clock
from gcbench.records.schema import Result
from gcbench.train.replica import Replica
from gcbench.train.schedules import total_steps

START_SECONDS = 5.0  # imports, data, process groups

Size = tuple[Any, ...]


class Estimates:
    """Seconds of runs; a size is looked at once."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._past: dict[Size, list[Result]] = {}
        for result in results:
            if result.status == "done" and result.steps:
                self._past.setdefault(_size(result.config, result.choices), []).append(result)
        self._tried: dict[Size, tuple[float, int]] = {}

    def seconds(self, config: Config) -> float | None:
        """Return the expected seconds, or None without data or model.

        The run itself will say why these are missing.
        """
        size = _size(config, config["choices"])
        past = self._past.get(size, [])
        if past:
            compressor = config["choices"]["compressor"]
            alike = [result for result in past if result.choices["compressor"] == compressor]
            step_seconds = median(map(_step_seconds, alike or past))
            steps_per_epoch = past[0].steps_per_epoch
            assert steps_per_epoch is not None  # as runs that are done say it
        else:
            try:
                if size not in self._tried:
                    self._tried[size] = _measure(config)
                step_seconds, steps_per_epoch = self._tried[size]
            except (ValueError, OSError, RuntimeError):
                return None
        steps = total_steps(
            config["trainer"]["max_steps"], config["trainer"]["epochs"], steps_per_epoch
        )
        return max(START_SECONDS, step_seconds * steps)


def _size(config: Config, choices: dict[str, str]) -> Size:
    trainer = config["trainer"]
    return (
        choices["model"],
        choices["dataset"],
        *(trainer.get(k) for k in ("gpus", "batch_size", "threads", "precision")),
    )


def _step_seconds(result: Result) -> float:
    assert result.steps is not None  # as runs that are done say it
    return max(1.0, result.duration) / result.steps


def _measure(config: Config) -> tuple[float, int]:
    """Return the seconds of a step without compression and tests, and the steps an epoch."""
    chosen = plan(config, Machine.detect())
    if chosen.device != "cpu":
        raise ConfigError("a device is not woken up for an estimate")
    trainer = to_dataclass(settings.TrainerSettings, config["trainer"])
    data, before = make_data(config), torch.get_num_threads()
    torch.set_num_threads(chosen.threads)
    replica = Replica(
        make_model(config["model"], data.shape, data.outputs),
        data.task,
        range(1),
        torch.device("cpu"),
        trainer,
    )
    batch = data.batch(
        epoch=0, step=0, worker=0, workers=chosen.workers, batch_size=trainer.batch_size, seed=0
    )
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        replica.begin()
        replica.backward(0, batch, (0, 0), Clock(replica.device))
        seconds.append(time.perf_counter() - start)
    torch.set_num_threads(before)
    rows = chosen.workers // chosen.processes
    return rows * min(seconds), data.steps_per_epoch(chosen.workers, trainer.batch_size)
