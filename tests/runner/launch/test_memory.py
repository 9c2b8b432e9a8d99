"""Freed memory stays with the process."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from gcbench.runner.launch.memory import give_back_freed_memory, keep_freed_memory


def typed_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    return libc


def count_page_faults(mebibytes: int) -> list[int]:
    """Return the page faults of each of six blocks of memory, each freed before the next.

    The blocks are not tensors, which are aligned: glibc before 2.38 does not always see that a
    freed block of the same size fits an aligned one.
    """
    libc = typed_libc()
    faults = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = libc.malloc(mebibytes << 20)
        ctypes.memset(block, 1, mebibytes << 20)
        libc.free(block)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return faults


def count_in_main_thread(mebibytes: int) -> list[int]:
    """Return the page faults of blocks of the main thread."""
    keep_freed_memory()
    return count_page_faults(mebibytes)


def count_in_later_thread(mebibytes: int) -> list[int]:
    """Return the page faults of blocks of a thread that starts later."""
    keep_freed_memory()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(count_page_faults, mebibytes).result()


# This is larger than any threshold that fits into mallopt's int.
LARGER = pytest.param(count_in_main_thread, 2500, marks=pytest.mark.slow)


CASES = [(count_in_main_thread, 64), (count_in_later_thread, 80), LARGER]


@pytest.mark.parametrize(("count", "mebibytes"), CASES)
def test_a_block_gets_the_pages_of_the_one_before(
    count: Callable[[int], list[int]], mebibytes: int
) -> None:
    # The process is spawned, as a fork would have the heap of the thread that forked it.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        first, *later = process.submit(count, mebibytes).result()
    assert first > 20 > max(later)  # 64 MiB in huge pages would be 32 faults


def measure_given_back(mebibytes: int) -> int:
    """Return how many MiB of a freed block, which the process keeps, are given back on request."""
    keep_freed_memory()
    libc = typed_libc()
    block = libc.malloc(mebibytes << 20)
    ctypes.memset(block, 1, mebibytes << 20)
    libc.free(block)
    kept = resident_mebibytes()
    give_back_freed_memory()
    return kept - resident_mebibytes()


def resident_mebibytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc here")
def test_a_further_run_finds_the_memory_of_the_one_before() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        assert process.submit(measure_given_back, 200).result() > 190
