"""Kernels: pure element-wise functions of very many values, run eager or compiled.

Compiled (by Inductor, meant for GPUs), a kernel is one loop that reads and writes memory once.
Eager, it is called on blocks that fit in a core's cache. Both give the same bits, except in kernels
that sum floats. Our own code replaces many kernels: C++ on CPUs (`native.py`), and Triton on GPUs
(`launches.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch

from gcbench.core.codecs.tracing import compile_call, key_of, leaves_of
from gcbench.core.errors import ConfigError, in_one_line
from gcbench.core.private import use_own_compiler_cache

log = logging.getLogger("gcbench")
P = ParamSpec("P")
R = TypeVar("R")
Backend = Literal["eager", "native", "compiled"]
CACHED_VALUES = 1 << 16  # values that fit in a core's cache with what is computed from them
BLOCK_VALUES: dict[Backend, int] = {
    "eager": CACHED_VALUES,
    "native": CACHED_VALUES,
    "compiled": 1 << 24,
}
Runner = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Runs a kernel's function with its arguments, and returns what the function would."""


_backend: Backend = "eager"
_may_fall_back = False
_runner: Runner | None = None


def use_backend(backend: Backend, may_fall_back: bool = False) -> None:
    """Choose how all codecs of this process run.

    Args:
        backend: `native` uses our own C++ on CPUs where there is some, and eager kernels elsewhere;
            `compiled` uses Inductor, and raises ValueError if others can write to its cache.
        may_fall_back: True lets all kernels run eager, with a warning, if one cannot be compiled;
            otherwise that is an error.
    """
    global _backend, _may_fall_back
    if backend == "compiled":
        use_own_compiler_cache()
        # This logger would warn that there is no CUDA.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    _backend = backend
    _may_fall_back = may_fall_back


def choose_codec_backend(asked: str, device: str, compiler: bool, key: str) -> Backend:
    """Return the codec backend. Raises ConfigError if it is not available."""
    if asked not in ("auto", "eager", "compiled"):
        raise ConfigError(f"{key}={asked}: type auto, eager or compiled")
    if asked == "compiled" and not compiler:
        raise ConfigError(
            f"{key}=compiled: there is no C++ compiler here; install g++, or type {key}=eager"
        )
    if asked == "eager" or not compiler:
        return "eager"
    return "compiled" if device == "cuda" else "native"


@contextmanager
def keep_backend() -> Iterator[None]:
    """Restore on exit how all kernels of this process ran before."""
    global _backend, _may_fall_back
    before = _backend, _may_fall_back
    try:
        yield
    finally:
        _backend, _may_fall_back = before


def backend_in_use() -> Backend:
    """Return how the codecs of this process run."""
    return _backend if _runner is None else "eager"


@contextmanager
def run_kernels_by(runner: Runner) -> Iterator[None]:
    """Call `runner` in place of every kernel in this context, to observe or to compile them."""
    global _runner
    before, _runner = _runner, runner
    try:
        yield
    finally:
        _runner = before


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function as a kernel, which is one loop when it is compiled.

    The function is pure, or writes only into its arguments called `out`.
    """
    calls: dict[Any, Callable[[list[Any]], R]] = {}

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if _runner is not None:
            return cast(R, _runner(function, args, kwargs))
        if _backend != "compiled":
            return function(*args, **kwargs)
        leaves = [*leaves_of((args, kwargs))]
        key = key_of(leaves)
        if key not in calls:
            try:
                calls[key] = compile_call(function, (args, kwargs))
            except Exception as error:  # from three compilers, each with errors of its own
                fall_back(error)
                return function(*args, **kwargs)
        return calls[key](leaves)

    return run


def fall_back(error: Exception) -> None:
    """Run all kernels eager from now on, or raise the error if they may not."""
    global _backend
    if not _may_fall_back:
        raise error
    _backend = "eager"
    reason = in_one_line(error)
    log.warning("a codec failed to compile, so all codecs run eager from now on: %s", reason)


def block_slices(
    count: int, values: int, device: torch.device, block: int | None = None
) -> Iterator[slice]:
    """Yield slices of `count` items of `values` values each, one slice per kernel call.

    A slice has as many values as suit the backend, or `block` values where sums may depend on how
    many are added at once. On a GPU, a single slice has all items.
    """
    size = max(count, 1)
    if device.type == "cpu":
        size = max(1, (block or BLOCK_VALUES[_backend]) // values)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
