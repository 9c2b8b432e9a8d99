"""A method works where its gradients are, and computes there what it computes on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from method_cases import DIFFERENT, aggregate, compressor_of, gradients
from other_device import OtherDevice, There, brought_back, taken_there
from torch import Tensor

from gcbench.compressors import Compressor, Grads, State

WRAPPED = {"all tensors", "small tensors whole", "clipped values", "dense at first"}  # alike for all: one method will do
CASES = [(choice, variant) for choice, variant in DIFFERENT if variant not in WRAPPED or choice == "qsgd"]
each_case = pytest.mark.parametrize(("choice", "variant"), CASES)
WORKERS = range(4)


def two_steps(compressor: Compressor, taken: Callable[[Tensor], Tensor]) -> tuple[list[Grads], State]:
    """Updates and what they sent, and the last state."""
    seen, state = [], State()
    for number in range(2):
        grads = {k: taken(g) for k, g in gradients(WORKERS, number).items()}
        out = aggregate(compressor, grads, number=number, state=state)
        seen += [out.update, out.sent()]
        state = out.state
    return seen, state


@each_case
def test_nothing_of_a_method_is_on_another_device(choice: str, variant: str) -> None:
    compressor = compressor_of(choice, variant)
    expected, _ = two_steps(compressor, torch.clone)
    with OtherDevice():
        found, state = two_steps(compressor, taken_there)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close({k: brought_back(x) for k, x in a.items()}, b)
    remembered = [x for layer in state.layers() for x in (*layer.shared.values(), *layer.per_worker.values())]
    assert all(isinstance(x, There) for x in remembered)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@each_case
def test_a_gpu_computes_what_a_cpu_does(choice: str, variant: str) -> None:
    compressor = compressor_of(choice, variant)
    expected, _ = two_steps(compressor, torch.clone)
    found, _ = two_steps(compressor, Tensor.cuda)
    for a, b in zip(found, expected, strict=True):
        assert all(x.is_cuda for x in a.values())
        # Sums of another order round otherwise; a draw that close to a border of two codes is not among these few values.
        torch.testing.assert_close({k: x.cpu() for k, x in a.items()}, b, rtol=1e-3, atol=1e-5)
