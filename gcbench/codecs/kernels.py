"""Kernels, which are pure element-wise functions of very many values, run eager or compiled.

Compiled (`torch.compile`: C++ on a CPU, Triton on a GPU) a kernel is one loop that reads and writes
memory once. Eager, it is called on blocks that stay in a core's cache. Both give the same bits, as
long as a kernel adds no floats up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch

from gcbench.private import use_own_compiler_cache

P = ParamSpec("P")
R = TypeVar("R")

Backend = Literal["eager", "compiled"]

CACHED_VALUES = 1 << 16  # stay in a core's cache with what is computed from them
BLOCK_VALUES: dict[Backend, int] = {"eager": CACHED_VALUES, "compiled": 1 << 24}

# One loop, however long the expression: by default a value that is used often, took many
# operations or was read from many places is stored.
ONE_LOOP: dict[str, str | int | bool | Callable[..., Any]] = {
    "realize_opcount_threshold": 10_000,
    "realize_reads_threshold": 1_000,
    "realize_acc_reads_threshold": 10_000,
    "max_fusion_size": 1_000,
}

Runner = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Runs a kernel's function with its arguments, and returns what the function would."""

_backend: Backend = "eager"
_runner: Runner | None = None


def use_backend(backend: Backend) -> None:
    """Choose how all kernels of this process run."""
    global _backend
    _backend = backend
    if backend == "compiled":
        use_own_compiler_cache()
        import torch._dynamo.config as dynamo

        # This logger would warn that there is no CUDA.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        dynamo.specialize_int = True  # levels and widths are constants of a kernel
        dynamo.recompile_limit = 64
        dynamo.fail_on_recompile_limit_hit = True  # never silently eager


def backend() -> Backend:
    return _backend


@contextmanager
def run_kernels_by(runner: Runner) -> Iterator[None]:
    """Hand the calls of all kernels to `runner` meanwhile, for who watches or compiles them."""
    global _runner
    before, _runner = _runner, runner
    try:
        yield
    finally:
        _runner = before


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Return a pure function, or one that writes into its arguments called `out`, as one loop."""
    compiled: Callable[P, R] | None = None

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal compiled
        if _runner is not None:
            return cast(R, _runner(function, args, kwargs))
        if _backend == "eager":
            return function(*args, **kwargs)
        if compiled is None:
            compiled = torch.compile(function, fullgraph=True, options=ONE_LOOP)
        return compiled(*args, **kwargs)

    return run


def block_slices(count: int, values: int, device: torch.device, least: int = 0) -> Iterator[slice]:
    """Yield slices of `count` items of `values` values each, one slice for a kernel's call.

    A slice has as many values as suit the backend, or `least`; on a GPU one slice has all.
    """
    size = max(count, 1)
    if device.type == "cpu":
        size = max(1, max(BLOCK_VALUES[_backend], least) // values)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
