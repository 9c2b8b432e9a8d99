"""Kernels: pure element-wise functions of very many values, run eager or compiled.

Compiled (`torch.compile`, meant for GPUs), a kernel is one loop that reads and writes memory once.
Eager, it is called on blocks that fit in a core's cache. Both give the same bits, except in kernels
that sum floats. On CPUs our own C++ (`native.py`) replaces kernels.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch

from gcbench.private import use_own_compiler_cache
from gcbench.reasons import in_one_line

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

COMPILER_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    # Keep a kernel one loop, however long its expression is: by default Inductor stores a value
    # that is used often, took many operations or was read from many places.
    "realize_opcount_threshold": 10_000,
    "realize_reads_threshold": 1_000,
    "realize_acc_reads_threshold": 10_000,
    "max_fusion_size": 1_000,
    # Give the bits of eager kernels on a GPU, too: by default products are added there without
    # rounding them first, and quotients are approximate.
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
}

DYNAMO = {
    "specialize_int": True,  # levels and widths are constants of a kernel
    "recompile_limit": 64,
    "fail_on_recompile_limit_hit": True,  # rather than silently run eager
}

Runner = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Runs a kernel's function with its arguments, and returns what the function would."""

_backend: Backend = "eager"
_may_fall_back = False
_runner: Runner | None = None
_thread = threading.local()


def use_backend(backend: Backend, may_fall_back: bool = False) -> None:
    """Choose how all codecs of this process run.

    Args:
        backend: `native` uses our own C++ on CPUs where there is some, and eager kernels elsewhere;
            `compiled` uses torch.compile, and raises ValueError if others can write to its cache.
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


@contextmanager
def keep_backend() -> Iterator[None]:
    """Restore on exit how all kernels of this process ran before, and this thread's Dynamo."""
    global _backend, _may_fall_back
    before = _backend, _may_fall_back
    try:
        with keep_dynamo():
            yield
    finally:
        _backend, _may_fall_back = before


@contextmanager
def keep_dynamo() -> Iterator[None]:
    """Restore on exit Dynamo's settings in this thread, which a compiled kernel changes.

    They would also hold for functions that the user compiles.
    """
    configured = hasattr(_thread, "dynamo_before")
    try:
        yield
    finally:
        if not configured and hasattr(_thread, "dynamo_before"):
            _set_dynamo(_thread.dynamo_before)
            del _thread.dynamo_before


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
    compiled: Callable[P, R] | None = None

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal compiled
        if _runner is not None:
            return cast(R, _runner(function, args, kwargs))
        if _backend != "compiled":
            return function(*args, **kwargs)
        _configure_thread()
        if compiled is None:
            compiled = torch.compile(function, fullgraph=True, options=COMPILER_OPTIONS)
        if _may_fall_back:
            return _run_or_fall_back(compiled, function, args, kwargs)
        return compiled(*args, **kwargs)

    return run


def _configure_thread() -> None:
    """Configure Dynamo in this thread, since PyTorch keeps its settings per thread.

    Exchanges that overlap with a backward pass run in their own thread.
    """
    if not hasattr(_thread, "dynamo_before"):
        _thread.dynamo_before = _set_dynamo(DYNAMO)


def _set_dynamo(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Change Dynamo's settings in this thread, and return what they were."""
    import torch._dynamo.config as dynamo  # slow to import

    before = {name: getattr(dynamo, name) for name in settings}
    for name, value in settings.items():
        setattr(dynamo, name, value)
    return before


def _run_or_fall_back(
    compiled: Callable[..., R], function: Callable[..., R], args: Any, kwargs: Any
) -> R:
    """Run a compiled kernel; if it does not compile, run all kernels eager from then on.

    The compiler fails before the kernel has written anything, so that the call can be repeated.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException  # slow to import

    global _backend
    try:
        return compiled(*args, **kwargs)
    except (FailOnRecompileLimitHit, TorchDynamoException) as error:
        _backend = "eager"
        reason = in_one_line(error)
        log.warning("a codec failed to compile, so all codecs run eager from now on: %s", reason)
        return function(*args, **kwargs)


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
