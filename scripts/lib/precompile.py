"""Kernels of measurements compiled before these: by many processes, which run nothing on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from typing import Any
from unittest import mock

import torch

from gcbench.core.codecs.kernels import run_kernels_by, use_backend
from gcbench.core.codecs.launches import Launch, compile_launch, observe_launches
from gcbench.core.codecs.tracing import compile_graph, key_of, leaves_of, trace_call
from gcbench.runner.bench import local
from gcbench.runner.bench.local import Input, measure, one_matrix
from gcbench.runner.bench.timing import Timing
from gcbench.runner.config.compose import resolve_overrides
from gcbench.runner.config.typed import to_overrides
from gcbench.runner.launch.instantiate import make_compressor
from lib.gpu_steps import Call, KernelCall, fake_tensors

Codecs = tuple[str, dict[str, Any], int, int]
"""A method and its knobs, and how many values and workers there are."""


def compile_all(todo: Sequence[Codecs]) -> Iterator[str]:
    """Compile the kernels of these measurements on all cores; yield what could not be."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as executor:
        for (name, *_), error in zip(todo, executor.map(_compile, todo), strict=True):
            if error:
                yield f"{name}: {error}"


def _compile(codecs: Codecs) -> str | None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # there is a process for each core
    use_backend("compiled")
    try:
        for call in calls_of(*codecs):
            if isinstance(call, Launch):
                compile_launch(call)
                continue
            with fake_tensors():
                compile_graph(trace_call(call.function, (call.args, call.kwargs)).graph)
    except Exception as error:  # the measurement says what is wrong, and others must not wait
        return f"{type(error).__name__}: {error}"[:200]
    return None


def calls_of(name: str, knobs: dict[str, Any], values: int, workers: int) -> list[Call]:
    """Return the kernels' calls in a measurement of a codec, on fake tensors on a GPU."""
    calls: dict[Any, Call] = {}

    def note(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.setdefault(
            (function, key_of([*leaves_of((args, kwargs))])), KernelCall(function, args, kwargs)
        )
        return function(*args, **kwargs)

    def note_launch(launch: Launch) -> None:
        constants = (*launch.constants.items(),)
        calls.setdefault((launch.name, constants, key_of([*launch.args])), launch)

    def call_once(work: Callable[[], object], *_: object) -> Timing:
        work()
        return Timing(1, 1, 1)

    config, _ = resolve_overrides(to_overrides({"compressor": name, **knobs}))
    with ExitStack() as stack:
        for context in (
            fake_tensors(),
            run_kernels_by(note),
            observe_launches(note_launch),
            mock.patch.object(local, "time_beside_copy", call_once),
            mock.patch.object(local, "cpu_beside_one_thread", call_once),
        ):
            stack.enter_context(context)
        shapes = one_matrix(values)
        grads = {k: torch.empty(1, *shape, device="cuda") for k, shape in shapes.items()}
        for _ in measure(make_compressor(config.compressor), Input("normal", grads), 1, workers):
            pass
    return [*calls.values()]
