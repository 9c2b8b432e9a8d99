"""How long a run will take: from earlier ones of its size, else from a few gradients taken here."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch

from gcbench import settings
from gcbench.config import Config, ConfigError
from gcbench.launch.instantiate import make_data, make_model, typed
from gcbench.launch.plan import Machine, plan
from gcbench.records.clock import Clock
from gcbench.records.files import took
from gcbench.train.replica import Replica
from gcbench.train.schedules import total_steps

START_SECONDS = 5.0  # imports, data, process groups

Size = tuple[Any, ...]
Result = dict[str, Any]


class Estimates:
    """Seconds of runs; a size is looked at once."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._past: dict[Size, list[Result]] = {}
        for result in results:
            if result["status"] == "done" and result.get("steps") and result.get("steps_per_epoch"):
                self._past.setdefault(_size(result["config"], result["choices"]), []).append(result)
        self._tried: dict[Size, tuple[float, int]] = {}

    def seconds(self, config: Config) -> float | None:
        """None where data or model are not to be had, of which the run itself will say why."""
        size = _size(config, config["choices"])
        past = self._past.get(size, [])
        if past:
            alike = [
                r for r in past if r["choices"]["compressor"] == config["choices"]["compressor"]
            ]
            step_seconds, steps_per_epoch = (
                median(map(_step_seconds, alike or past)),
                past[0]["steps_per_epoch"],
            )
        else:
            try:
                if size not in self._tried:
                    self._tried[size] = _try(config)
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
    return max(1.0, took(result)) / result["steps"]


def _try(config: Config) -> tuple[float, int]:
    """Seconds of a step without compression and tests, and steps an epoch."""
    chosen = plan(config, Machine.here())
    if chosen.device != "cpu":
        raise ConfigError("a device is not woken up for an estimate")
    trainer = typed(settings.TrainerSettings, config["trainer"])
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
