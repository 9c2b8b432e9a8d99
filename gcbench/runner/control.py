"""Communication between processes other than that of gradients: never metered, never timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.core.library.agreement import gather_json


class Control(Protocol):
    waits: bool  # whether it is waiting for other processes at this moment

    def gather(self, value: Any) -> list[Any]:
        """Return each process's `value`, which JSON can represent; tuples come back as lists."""

    def gather_tensors(self, x: Tensor) -> list[Tensor]:
        """Return each process's `x`; all are on the CPU and have the same shape and type."""

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over all processes; `x` itself is unchanged."""

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace the tensors by those of process 0."""

    def propose(self, urgency: int) -> None:
        """Start an agreement; computation until `agree` hides the wait for other processes."""

    def agree(self) -> int:
        """Return the highest urgency that any process proposed."""

    def barrier(self) -> None:
        """Wait until all processes are here."""


class LocalControl:
    """The control of a single process."""

    waits = False

    def __init__(self) -> None:
        self._urgency = 0

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def gather_tensors(self, x: Tensor) -> list[Tensor]:
        return [x]

    def sum(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        pass

    def propose(self, urgency: int) -> None:
        self._urgency = urgency

    def agree(self) -> int:
        return self._urgency

    def barrier(self) -> None:
        pass


class ProcessGroupControl:
    """Control over a gloo group of its own, which carries no gradients and waits for no GPU.

    Values travel as JSON: whoever gets access to a socket of the run can disturb it, but cannot run
    code through it.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None
        self.waits = False

    def gather(self, value: Any) -> list[Any]:
        return gather_json(value, self.gather_tensors)

    def gather_tensors(self, x: Tensor) -> list[Tensor]:
        everyone = [torch.empty_like(x) for _ in range(self._group.size())]
        with self._mark_waiting():
            dist.all_gather(everyone, x, group=self._group)
        return everyone

    def sum(self, x: Tensor) -> Tensor:
        total = x.to("cpu", copy=True)  # a copy, so that the caller's `x` is unchanged
        with self._mark_waiting():
            dist.all_reduce(total, group=self._group)
        return total.to(x.device)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for t in tensors:
            host = t.detach().cpu().contiguous()
            with self._mark_waiting():
                dist.broadcast(host, group_src=0, group=self._group)
            t.data.copy_(host)

    def propose(self, urgency: int) -> None:
        self._flag.fill_(urgency)
        self._work = dist.all_reduce(
            self._flag, dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def agree(self) -> int:
        assert self._work is not None, "propose comes first"
        with self._mark_waiting():
            self._work.wait()
        return int(self._flag.item())

    def barrier(self) -> None:
        with self._mark_waiting():
            dist.barrier(group=self._group)

    @contextmanager
    def _mark_waiting(self) -> Iterator[None]:
        self.waits = True
        yield
        self.waits = False  # not after an error: the process was waiting until then
