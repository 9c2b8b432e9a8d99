"""Large tensors of every step get the memory of those of the step before."""

from __future__ import annotations

import ctypes
import gc

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # glibc's mallopt(3)


def keep_freed_memory() -> None:
    """Tell glibc, where there is one, not to hand freed memory back to the system.

    By default every tensor above 32 MiB is mapped anew, and its pages cost more to touch than a
    codec takes to fill them. Trimming the heap costs as much: 16 virtual workers of an LSTM free
    gigabytes in a step, more than a threshold can say. Threads that start later, as that of
    overlapped exchanges, share the heap of the main one: their own would map each tensor above
    64 MiB anew, whatever the thresholds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(threshold, -1)  # never: as a size_t it is the largest
        mallopt(_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Hand back to the system, and to the GPU's driver, what this process has freed and kept.

    To be called before a further run of a sweep, whose check of memory would count it as used.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
