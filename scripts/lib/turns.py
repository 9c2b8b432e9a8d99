"""Whole training steps by several methods in turn, beside PyTorch's own, between processes.

Torchrun or netlab starts the processes. Methods take turns in them, a few steps at a time, so that
a slow spell of the machine affects all of them; the first step of a turn is not timed. The result
is the median over the timed steps, each with the time of its slowest process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gcbench.core.codecs.kernels import Backend, choose_codec_backend, use_backend
from gcbench.core.errors import ConfigError
from gcbench.core.meeting import join
from gcbench.runner.bench.network import TIMEOUT, gloo_group
from gcbench.runner.bench.timing import Row, ratio_in_turn, seconds, slowest
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.control import Control, ProcessGroupControl
from gcbench.runner.launch.instantiate import make_data
from gcbench.runner.launch.memory import keep_freed_memory
from gcbench.runner.launch.plan import Machine
from gcbench.runner.settings.config import RunConfig
from lib.contenders import (
    CPU,
    Contender,
    GcbenchSteps,
    TorchSteps,
    powersgd_hook,
)

TURN = 3  # consecutive steps of a method in one turn
MESSAGES = 50  # all-reduces that are timed, of which the median counts
# Overrides of all contenders. They share their weights, and would each need memory for a momentum.
FIXED = ["optimizer.momentum=0", "trainer.threads=1", "logger.mode=disabled"]
BASELINE = "no exchange"
# What TorchSteps takes. The hook gets a single bucket, since with several it fails on gloo.
TORCH: dict[str, dict[str, Any]] = {
    "torch DDP": {},
    "torch DDP, powerSGD_hook rank 2": {"hook": powersgd_hook(2), "bucket_mib": 4096},
}


class Steps(NamedTuple):
    rows: list[Row]
    message_seconds: float


def refuse_alone(case: str) -> None:
    """Raise ConfigError if this is not one of the processes of several hosts."""
    if "RANK" not in os.environ:
        raise ConfigError(
            "this runs on hosts; type scripts/netlab --hosts 2 --rate 1gbit -- "
            f"scripts/turns {case} ..."
        )


def refuse_fixed(overrides: Iterable[str], fixed: Iterable[str], methods: str) -> None:
    """Raise ConfigError for overrides that a script replaces by its `fixed` ones or its methods.

    `methods` says what to type in place of compressor=NAME.
    """
    known = {one.partition("=")[0]: f"{one} is fixed here" for one in fixed}
    known["compressor"] = methods
    for override in overrides:
        key = override.lstrip("+").partition("=")[0]
        if key in known:
            raise ConfigError(f"{override}: {known[key]}; leave it out")


def step_times(
    overrides: Sequence[str],
    methods: Mapping[str, Sequence[str]],
    rounds: int,
    mirrored: Collection[str] = (),
    torch_hooks: Mapping[str, Mapping[str, Any]] = TORCH,
) -> Steps:
    """Return one row per method and the seconds of a message, identical in all processes.

    `overrides` choose model, data and batch size, as `gcbench` takes them; those that are fixed
    here are replaced. Methods named in `mirrored` exchange nothing: a process encodes, and decodes
    as many messages as it would get.
    """
    keep_freed_memory()
    torch.set_num_threads(1)
    with join("gloo", timeout=TIMEOUT):
        control = ProcessGroupControl(gloo_group())
        contenders = make_contenders(overrides, methods, control, mirrored, torch_hooks)
        return Steps(time_rows(contenders, control, rounds), message_seconds(control))


def make_contenders(
    overrides: Sequence[str],
    methods: Mapping[str, Sequence[str]],
    control: ProcessGroupControl,
    mirrored: Collection[str] = (),
    torch_hooks: Mapping[str, Mapping[str, Any]] = TORCH,
) -> dict[str, Contender]:
    """Return contenders by name: a step without any exchange, those of PyTorch, and `methods`.

    `methods` are overrides by name, and `torch_hooks` arguments of TorchSteps. All contenders share
    one data set and one set of weights.
    """
    workers = dist.get_world_size()
    data = make_data(_config(overrides, workers))
    contenders: dict[str, Contender] = {
        BASELINE: GcbenchSteps(_config([*overrides, "compressor=none"], 1), data, control)
    }
    for name, more in torch_hooks.items():
        contenders[name] = TorchSteps(_config(overrides, workers), data, **more)
    for name, its_own in methods.items():
        contenders[name] = GcbenchSteps(
            _config([*overrides, *its_own], workers), data, control, name in mirrored
        )
    _share_weights(contenders.values())
    return contenders


def time_rows(
    contenders: Mapping[str, Contender],
    control: Control,
    rounds: int,
    device: torch.device = CPU,
) -> list[Row]:
    """Return one row per contender, with its times beside those of the step without exchange."""
    timed = time_in_turn(contenders, control, rounds, device)
    return [
        {
            "method": name,
            "step_seconds": median(times),
            "all_step_seconds": times,
            "of_no_exchange": ratio_in_turn(times, timed[BASELINE]),
            **contenders[name].facts(control),
        }
        for name, times in timed.items()
    ]


def time_in_turn(
    contenders: Mapping[str, Contender], control: Control, rounds: int, device: torch.device = CPU
) -> dict[str, list[float]]:
    """Return the seconds of all steps of `rounds`, before which there is one that is not timed."""
    times_of: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(1 + rounds):
        for name, contender in contenders.items():
            times = _turn(contender, control, device)
            times_of[name] += times[1:] if number else []
    return slowest(times_of, control)


def use_codecs(asked: str = "auto") -> Backend:
    """Choose the codecs that a run with trainer.codec_backend=ASKED has, and return which."""
    key = "trainer.codec_backend"
    backend = choose_codec_backend(asked, CPU.type, Machine.detect().compiler, key)
    use_backend(backend)
    return backend


def message_seconds(control: ProcessGroupControl) -> float:
    """Return the seconds that any message takes, however small it is.

    They are the latency of the link and of gloo's threads, which on a slow core is the larger part.
    An all-reduce of one number is 2 (W - 1) messages one after the other, timed from the arrival of
    the last process.
    """
    number, times = torch.zeros(1), []
    for _ in range(MESSAGES):
        control.barrier()
        start = time.perf_counter()
        dist.all_reduce(number)
        times.append(time.perf_counter() - start)
    shortest = [min(same) for same in zip(*control.gather(times), strict=True)]
    return median(shortest) / (2 * (dist.get_world_size() - 1))


def keep_measured(name: str, facts: Row, page: str) -> None:
    """Write outputs/results/links/NAME.json and outputs/tables/links/NAME.md; print the page."""
    shown = Path("outputs/tables/links") / f"{name}.md"
    kept = Path("outputs/results/links") / f"{name}.json"
    for path in (shown, kept):
        path.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    shown.write_text(page, encoding="utf-8")
    print(page)


def _turn(contender: Contender, control: Control, device: torch.device) -> list[float]:
    def cycle() -> None:
        for _ in range(contender.period):
            contender.step()

    times = []
    for _ in range(TURN):
        control.barrier()
        times.append(seconds(cycle, device) / contender.period)
    contender.settle()
    for p in contender.model.parameters():
        p.grad = None  # to make room for the others
    return times


def _share_weights(contenders: Iterable[Contender]) -> None:
    """Make all contenders share the first one's weights, to save memory.

    This does no harm, as only times are measured.
    """
    first, *others = (list(contender.model.parameters()) for contender in contenders)
    for other in others:
        for p, shared in zip(other, first, strict=True):
            p.data = shared.data


def _config(overrides: Sequence[str], workers: int) -> RunConfig:
    return resolve(compose_overrides([*overrides, *FIXED, *of_workers(workers)]))


def of_workers(workers: int) -> list[str]:
    """Return the overrides of one process per worker, whoever started it."""
    launcher = "local" if workers > 1 else "virtual"
    return [f"trainer.workers={workers}", f"trainer.launcher={launcher}"]
