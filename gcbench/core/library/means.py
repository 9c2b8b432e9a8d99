"""Plain means of DDP's buckets, which begin as DDP completes them, as they do without a hook."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.core.comm.meter import Meter, row_bits
from gcbench.core.compressor import Compressor, State
from gcbench.core.finite import not_finite
from gcbench.core.methods.dense import Dense
from gcbench.core.wrappers.wrappers import CheckedGradients


def type_of_means(compressor: Compressor) -> torch.dtype | None:
    """Return the type in which one all-reduce is all that a method does; None for other methods."""
    inner = compressor.inner if isinstance(compressor, CheckedGradients) else compressor
    if not isinstance(inner, Dense) or not inner.is_one_all_reduce:
        return None
    dtype: torch.dtype = getattr(torch, inner.dtype)
    return dtype


class Mean(Future[tuple[State, Tensor]]):
    """A mean over all workers that is under way, and will be in the place of `tensors`."""

    @torch.no_grad()
    def __init__(
        self,
        tensors: Sequence[Tensor],
        dtype: torch.dtype,
        group: dist.ProcessGroup,
        meter: Meter,
    ) -> None:
        """Begin the mean that `Dense` makes of this worker's fp32 gradients."""
        super().__init__()
        self._tensors, self._workers = tensors, group.size()
        in_place = len(tensors) == 1 and tensors[0].dim() == 1
        whole = tensors[0] if in_place else torch.cat([x.flatten() for x in tensors])
        self._wire = whole if dtype == torch.float32 else whole.to(dtype).div_(self._workers)
        bits = row_bits([self._wire.view(1, -1)])
        meter.count_equal("all_reduce", self._workers, bits, bits)
        self._work = dist.all_reduce(self._wire, group=group, async_op=True)

    @torch.no_grad()
    def result(self, timeout: float | None = None) -> tuple[State, Tensor]:
        """Wait for it; return a state, which is empty, and whether a value is not finite."""
        self._work.wait()
        if self._wire.dtype == torch.float32:
            self._wire.div_(self._workers)
        parts = self._wire.split([x.numel() for x in self._tensors])
        for x, part in zip(self._tensors, parts, strict=True):
            if x is not self._wire:
                x.copy_(part.view(x.shape))
        return State(), not_finite([x.view(1, -1) for x in parts])
