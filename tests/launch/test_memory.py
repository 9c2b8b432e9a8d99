"""Freed memory stays with the process."""

from __future__ import annotations

import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch

from gcbench.launch.memory import keep_freed_memory


def count_page_faults(mebibytes: int) -> int:
    """Return the page faults of a tensor after nine of its size have been freed."""
    keep_freed_memory()
    before = 0
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(mebibytes << 20, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.parametrize("mebibytes", [64, pytest.param(2500, marks=pytest.mark.slow)])
def test_a_tensor_gets_the_pages_of_the_one_before(mebibytes: int) -> None:
    """The larger one would be given back by any threshold that mallopt's int can say."""
    with ProcessPoolExecutor(1, get_context("fork")) as process:
        assert process.submit(count_page_faults, mebibytes).result() < 1000
