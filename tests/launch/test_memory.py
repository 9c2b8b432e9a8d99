"""Freed memory stays with the process."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest
import torch

from gcbench.launch.memory import keep_freed_memory


def count_page_faults(mebibytes: int) -> list[int]:
    """Return the page faults of each of several tensors, of which each is freed before the next."""
    faults = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(mebibytes << 20, dtype=torch.uint8).fill_(1)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return faults


def count_here(mebibytes: int) -> list[int]:
    """Return the page faults of the main thread's tensors."""
    keep_freed_memory()
    return count_page_faults(mebibytes)


def count_in_a_thread(mebibytes: int) -> list[int]:
    """Return the page faults of the tensors of a thread that starts later."""
    keep_freed_memory()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(count_page_faults, mebibytes).result()


LARGER = pytest.param(count_here, 2500, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("count", "mebibytes"), [(count_here, 64), (count_in_a_thread, 80), LARGER]
)
def test_a_tensor_gets_the_pages_of_the_one_before(
    count: Callable[[int], list[int]], mebibytes: int
) -> None:
    """The larger one would be given back by any threshold that mallopt's int can say."""
    # A new process: a copy would have the heap of the thread that it was copied from.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        faults = process.submit(count, mebibytes).result()
    # Not each: glibc does not always see that a freed tensor fits the next.
    assert min(faults) < 1000, faults
