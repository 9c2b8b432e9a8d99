"""Run the Triton code of kernels on the CPU, in Triton's interpreter.

`PYTHONPATH=scripts python tests/support/interpreted.py qsgd orq` takes steps of these methods. It
runs every new call of a kernel both eagerly and interpreted, and fails if the results differ in a
bit, or sums by more than rounding. It needs a process of its own: Triton chooses its interpreter
when it is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl
from lib.gpu_compiler import FakeDriver
from method_cases import aggregate, compressor_of, variants
from torch import Tensor
from torch._inductor import config
from torch._inductor.runtime import triton_helpers
from torch.utils._pytree import tree_leaves, tree_map
from triton.runtime.interpreter import TensorHandle

from gcbench.core.codecs.kernels import run_kernels_by
from gcbench.core.codecs.tracing import compile_graph, trace_call

Array = Callable[[Any], Any]
LIBDEVICE: dict[str, Array] = {
    "floor": np.floor,
    "nearbyint": np.rint,
    "sqrt": np.sqrt,
    "trunc": np.trunc,
}

# Kernels that sum floats, in an order that depends on the device.
SUMS = {"mean_magnitude", "root_mean_square", "_means_of_sides"}

VALUES = 200 * 16 + 5  # in buckets of 16


def finite() -> Tensor:
    """Return `[2, VALUES]` with zeros of either sign, denormals, ties, and large values."""
    x = torch.randn(2, VALUES, generator=torch.Generator().manual_seed(0))
    x[:, ::7] = 0.0
    x[:, 1::7] = -0.0
    x[:, 16:64] *= 1e-41
    x[:, 64:112] *= 1e37
    x[:, 112:128] = 1.0
    x[:, 128:144] = -0.25
    x[:, 144:160] = 0.0
    return x


def not_finite() -> Tensor:
    """Return `[2, VALUES]` with a bucket that holds a NaN, and others that hold infinities."""
    x = finite()
    x[0, 200], x[1, 210], x[0, 240], x[1, -1] = torch.nan, torch.inf, -torch.inf, torch.nan
    return x


class Comparison:
    """Runs kernels eagerly, and compares every new call with Triton's interpreter."""

    def __init__(self, compared: Callable[[Tensor], bool]) -> None:
        self.compared = compared
        self.calls: set[object] = set()

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        copies = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, (args, kwargs))
        result = function(*args, **kwargs)
        call = (function, *(x.shape for x in tensors(copies)))
        if call not in self.calls:
            self.calls.add(call)
            inputs = tensors(copies)
            graph, _ = trace_call(function, copies)
            interpreted = compile_graph(graph, force_disable_caches=True)([*inputs])
            same = close if function.__name__ in SUMS else same_bits
            pairs = zip(
                tensors((args, kwargs, result)), [*inputs, *tensors(interpreted)], strict=True
            )
            for eager, triton_result in pairs:
                if self.compared(eager):
                    name = f"{function.__name__} of {[tuple(x.shape) for x in inputs]}"
                    assert same(eager, triton_result), f"{name}: Triton computes otherwise"
        return result


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal in every bit, where all NaNs count as equal."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    either = a.isnan() | b.isnan()
    signs_agree = torch.equal(a.signbit()[~either], b.signbit()[~either])
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a[~either], b[~either]) and signs_agree


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-6, atol=1e-44, equal_nan=True)


@contextmanager
def interpreter() -> Iterator[None]:
    """Make Inductor write Triton for tensors on the CPU, which the interpreter then executes."""
    with ExitStack() as stack:
        triton.runtime.driver.set_active(FakeDriver())
        stack.enter_context(mock.patch.object(triton_helpers, "set_driver_to_cpu", lambda: None))
        for name, array in LIBDEVICE.items():
            function = elementwise(array)
            stack.enter_context(mock.patch.object(triton_helpers.libdevice, name, function))
        stack.enter_context(config.patch(cpu_backend="triton"))
        yield


def elementwise(array: Array) -> Callable[..., Any]:
    def run(x: Any, _semantic: Any = None) -> Any:
        return tl.core.tensor(TensorHandle(array(x.handle.data), x.handle.dtype), x.type)

    return run


def compare(choices: Sequence[str]) -> None:
    """Compare the kernels in a step of each method, and print how many calls were equal."""
    for choice in choices:
        whole = "all tensors" in variants(choice)  # compresses even small ones
        compressor = compressor_of(choice, "all tensors" if whole else "as it is")
        # A NaN may get any code, which differs between devices, so that codes are not compared.
        for values, compared in (
            (finite(), lambda x: True),
            (not_finite(), lambda x: x.is_floating_point()),
        ):
            comparison = Comparison(compared)
            with interpreter(), run_kernels_by(comparison.run), np.errstate(all="ignore"):
                aggregate(compressor, {"w": values}).sent()
            print(choice, len(comparison.calls), flush=True)


if __name__ == "__main__":
    compare(sys.argv[1:])
