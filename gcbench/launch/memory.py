"""Reuse of memory: large tensors of a step get the memory that the previous step freed."""

from __future__ import annotations

import ctypes
import gc

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # glibc's mallopt(3)


def keep_freed_memory() -> None:
    """Tell glibc, if it is in use, not to return freed memory to the system.

    By default every tensor above 32 MiB is mapped anew, and touching its pages takes longer than a
    codec takes to fill them. Trimming the heap costs as much: 16 virtual workers of an LSTM free
    gigabytes per step, more than a threshold can express. Threads that start later, such as that of
    overlapped exchanges, share the heap of the main thread: a heap of their own would map each
    tensor above 64 MiB anew, whatever the thresholds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(threshold, -1)  # never: as a size_t, -1 is the largest value
        mallopt(_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Return freed memory of this process to the system and to the GPU's driver.

    Otherwise the memory check of the next run in a sweep would count it as used.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
