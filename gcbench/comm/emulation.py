"""A slower network than there is: collectives that last as long as the cost model says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def lasting(seconds: float, group: dist.ProcessGroup, device: torch.device) -> Iterator[None]:
    """What is inside takes `seconds` from when the last process is there, or as long as it takes by itself.

    The barrier by which all know that moment comes on top; on one machine it takes about 0.1 ms.
    """
    _finish(device)
    dist.barrier(group)
    end = time.perf_counter() + seconds
    yield
    _finish(device)
    time.sleep(max(0.0, end - time.perf_counter()))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
