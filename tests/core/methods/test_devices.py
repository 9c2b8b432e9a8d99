"""A method stays on the device of its gradients, with the same results as on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import pytest
import torch
from device_cases import check_stays_on_its_device, two_steps
from method_cases import DIFFERENT, FEW, compressor_of
from needed import lacks
from nightly import loop_over
from processes import server
from torch import Tensor

WRAPPED = {"all tensors", "small tensors whole", "clipped values", "dense at first"}
# A rotation is a product of matrices off a CPU, and levels that are fitted to values move with
# their rounding, so that a few values get other codes.
FITTED = ("orq", "rotated")
CASES = [
    case for case in DIFFERENT if (case[1] not in WRAPPED or case[0] == "qsgd") and case != FITTED
]


@pytest.fixture(scope="module")
def apart() -> Iterator[Executor]:
    """Yield an executor with its own process, in which autograd may start threads for the device.

    A process with such threads could not fork, as other tests do to start workers.
    """
    with ProcessPoolExecutor(1, server()) as executor:
        yield executor


@pytest.mark.skipif(torch.cuda.is_available(), reason=lacks("cpu", "-m gpu tries the GPU itself"))
@loop_over([key for key in CASES if key in FEW], CASES)
def test_nothing_of_a_method_is_on_another_device(
    choice: str, variant: str, apart: Executor
) -> None:
    apart.submit(check_stays_on_its_device, choice, variant).result()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason=lacks("gpu", "there is none"))
@loop_over(CASES)
def test_a_gpu_computes_what_a_cpu_does(choice: str, variant: str) -> None:
    compressor = compressor_of(choice, variant)
    expected, _ = two_steps(compressor)
    updates, _ = two_steps(compressor, Tensor.cuda)
    for a, b in zip(updates, expected, strict=True):
        assert all(x.is_cuda for x in a.values())
        # Sums in another order are rounded differently. None of these few values is so close to
        # the border between two codes that this would change its code.
        torch.testing.assert_close({k: x.cpu() for k, x in a.items()}, b, rtol=1e-3, atol=1e-5)
