"""FSDP2's parameter groups: the gradient of each is one flat tensor, split into shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:  # Importing it takes long.
    from torch.distributed.fsdp import FSDPModule

FlatHook = Callable[[Tensor], Tensor]
"""Called in the backward pass with a parameter group's gradient `[n]`; returns a mean over workers:
of this worker's shard where the gradient is that of all shards, else of the gradient itself.
"""


# PyTorch 2.14 warns of the name that earlier versions have.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class FlatGradient:
    """The hook of a `fully_shard` module that passes on its parameter group's gradient.

    Without `replicas`, it replaces the reduce-scatter and passes on the gradient of all shards.
    With `replicas`, the processes that hold the same shard in other nodes, it runs after the
    reduce-scatter and passes on the shard. While `on_gradient` is None, it averages as if there
    were no compressor.
    """

    def __init__(self, module: FSDPModule, replicas: dist.ProcessGroup | None) -> None:
        self.on_gradient: FlatHook | None = None
        self._replicas = replicas
        if replicas is None:
            module.set_custom_reduce_scatter(self)  # type: ignore[arg-type]  # duck-typed
        else:
            module.set_all_reduce_hook(self._average)

    @staticmethod
    def of(module: FSDPModule, replicas: dist.ProcessGroup | None) -> FlatGradient:
        """Return a new hook of `module`. Raises RuntimeError if the one that it has is in use."""
        if module in _hooks and _hooks[module].on_gradient is not None:
            raise RuntimeError("this module has a gcbench hook in use")
        _hooks[module] = FlatGradient(module, replicas)
        return _hooks[module]

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce-scatter `[W n]` to `[n]`, as FSDP calls it.

        Raises ValueError unless `op` is a mean or a sum.
        """
        if self.on_gradient is None:
            return _reduce_scatter(output_tensor, input_tensor, op, group, async_op)
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise ValueError(
                "set_gradient_divide_factor: a compressor returns a mean, which FSDP can only "
                "divide afterwards; type set_force_sum_reduction_for_comms(True), too"
            )
        output_tensor.copy_(self.on_gradient(input_tensor))
        if op == dist.ReduceOp.SUM:  # FSDP divides it later.
            output_tensor.mul_(group.size())
        return None

    def _average(self, reduced: Tensor) -> None:
        """Replace a shard of this node's gradient by its mean over all nodes."""
        assert self._replicas is not None
        if self.on_gradient is not None:
            reduced.copy_(self.on_gradient(reduced))
        else:
            dist.all_reduce(reduced.div_(self._replicas.size()), group=self._replicas)


_hooks: WeakKeyDictionary[FSDPModule, FlatGradient] = WeakKeyDictionary()
