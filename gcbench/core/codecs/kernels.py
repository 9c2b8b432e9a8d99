"""Kernels: pure element-wise functions of very many values, run eager or compiled.

Compiled (by Inductor, meant for GPUs), a kernel is one loop that reads and writes memory once.
Eager, it is called on blocks that fit in a core's cache. Both give the same bits, except in kernels
that sum floats. On CPUs our own C++ (`native.py`) replaces kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, fx

from gcbench.core.private import use_own_compiler_cache
from gcbench.core.reasons import in_one_line

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

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Traced(NamedTuple):
    """A call as a graph of its tensors, and how its results are to be put together."""

    graph: fx.GraphModule
    structure: Any


def leaves_of(tree: Any) -> Iterator[Any]:
    """Yield what arguments consist of, in the order of PyTorch's trees, which take ten times as
    long to flatten.
    """
    if isinstance(tree, (tuple, list)):
        for item in tree:
            yield from leaves_of(item)
    elif isinstance(tree, dict):
        yield from leaves_of([*tree.values()])
    else:
        yield tree


def key_of(leaves: list[Any]) -> tuple[Any, ...]:
    """Return all that a compiled call depends on: 1, 1.0 and True are different constants."""
    return tuple(
        [
            (x.shape, x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else (type(x), x)
            for x in leaves
        ]
    )


def compile_call(function: Callable[..., Any], arguments: Arguments) -> Callable[[list[Any]], Any]:
    """Return what does the same as `function` with arguments of this key, given their leaves."""
    graph, structure = trace_call(function, arguments)
    run = compile_graph(graph)
    from torch.utils._pytree import tree_unflatten

    def call(leaves: list[Any]) -> Any:
        results = run([x for x in leaves if isinstance(x, Tensor)])
        return tree_unflatten(results, structure) if any(x is not None for x in results) else None

    return call


def trace_call(function: Callable[..., Any], arguments: Arguments) -> Traced:
    """Return a call as a graph whose inputs are all its tensors, which it writes to at its end."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, given = tree_flatten(arguments)
    structure: Any = None

    def of_tensors(*tensors: Tensor) -> list[Any]:
        nonlocal structure
        remaining = iter(tensors)
        filled = [next(remaining) if isinstance(x, Tensor) else x for x in leaves]
        args, kwargs = tree_unflatten(filled, given)
        results, structure = tree_flatten(function(*args, **kwargs))
        return results

    trace = make_fx(
        functionalize(of_tensors, remove="mutations"),
        decomposition_table=select_decomp_table(),
        tracing_mode="fake",
    )
    with torch.no_grad():
        graph = trace(*(x for x in leaves if isinstance(x, Tensor)))
    return Traced(graph, structure)


def compile_graph(
    graph: fx.GraphModule, **settings: Any
) -> Callable[[list[Tensor]], list[Tensor | None]]:
    """Return the graph compiled as one loop, as a function that empties the list it is given."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    options: Mapping[str, Any] = {**COMPILER_OPTIONS, **settings}
    with config.patch(dict(options)), tracing(TracingContext(inputs[0].fake_mode)):
        return cast(Callable[..., Any], compile_fx_inner(graph, inputs))


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
                _fall_back(error)
                return function(*args, **kwargs)
        return calls[key](leaves)

    return run


def _fall_back(error: Exception) -> None:
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
