"""Kernels compiled by torch: traced once for each kind of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx

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
