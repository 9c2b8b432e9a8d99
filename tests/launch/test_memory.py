"""Freed memory stays with the process."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from gcbench.launch.memory import give_back_freed_memory, keep_freed_memory


def typed_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    return libc


def count_page_faults(mebibytes: int) -> list[int]:
    """Return the page faults of each of several blocks of memory, each freed before the next.

    Not tensors: they ask for an alignment, and glibc before 2.38 does not always see that a freed
    block of the same size fits one.
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
    """Return the page faults of the main thread's blocks."""
    keep_freed_memory()
    return count_page_faults(mebibytes)


def count_in_later_thread(mebibytes: int) -> list[int]:
    """Return the page faults of the blocks of a thread that starts later."""
    keep_freed_memory()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(count_page_faults, mebibytes).result()


# It would be given back by any threshold that mallopt's int can say.
LARGER = pytest.param(count_in_main_thread, 2500, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("count", "mebibytes"), [(count_in_main_thread, 64), (count_in_later_thread, 80), LARGER]
)
def test_a_block_gets_the_pages_of_the_one_before(
    count: Callable[[int], list[int]], mebibytes: int
) -> None:
    # A new process: a copy would have the heap of the thread that it was copied from.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        first, *later = process.submit(count, mebibytes).result()
    assert first > 20 > max(later)  # 32 of them would be huge pages


def measure_given_back(mebibytes: int) -> int:
    """Return the MiB of a freed block that the system has again, of a process that keeps them."""
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
