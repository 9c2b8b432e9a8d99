"""FSDP2's parameter groups: the gradient of each is one flat tensor, split into shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gcbench.comm.ddp import refuse_sparse_gradient

if TYPE_CHECKING:  # Importing it takes long.
    from torch.distributed.fsdp import FSDPModule

FlatHook = Callable[[Tensor, Sequence[int]], Tensor]
"""Called in the backward pass with a parameter group's gradient `[n]`, and with the indices of the
parameters in it; returns a mean over workers: of this worker's shard where the gradient is that of
all shards, else of the gradient itself, which it may overwrite.
"""


class Part(NamedTuple):
    """A parameter's place in its module, and what a flat shard has of it."""

    module: nn.Module
    name: str
    values: int  # with padding, which is at their end
    shape: torch.Size  # of this process's shard, without padding


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
        self._used = _UsedParameters.of(module)
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

    @property
    def parts(self) -> list[Part]:
        """The parameters of the group, in the order in which a flat gradient holds them."""
        return self._used.parts if self._used else []

    @property
    def _indices(self) -> list[int]:
        assert self._used, "a module without parameters reduces nothing"
        return self._used.indices

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
        output_tensor.copy_(self.on_gradient(input_tensor, self._indices))
        if op == dist.ReduceOp.SUM:  # FSDP divides it later.
            output_tensor.mul_(group.size())
        return None

    def _average(self, reduced: Tensor) -> None:
        """Replace a shard of this node's gradient by its mean over all nodes."""
        assert self._replicas is not None
        if self.on_gradient is not None:
            reduced.copy_(self.on_gradient(reduced, self._indices))
        else:
            dist.all_reduce(reduced.div_(self._replicas.size()), group=self._replicas)


_hooks: WeakKeyDictionary[FSDPModule, FlatGradient] = WeakKeyDictionary()


class _UsedParameters:
    """Takes the place of a parameter group's `post_backward` to note which have a gradient.

    FSDP packs these into the flat gradient, and tells a reduce-scatter only how many values it has.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._post_backward = group.post_backward
        self.indices: list[int] = []
        group.post_backward = self

    @staticmethod
    def of(module: FSDPModule) -> _UsedParameters | None:
        """Return that of a module's group; None if all of its parameters are in others."""
        state = module._get_fsdp_state()
        if not hasattr(state, "_fsdp_param_groups"):  # PyTorch 2.11
            groups = [state._fsdp_param_group] if state._fsdp_param_group else []
        else:
            groups = state._fsdp_param_groups  # more than one only on several meshes
        if not groups:
            return None
        (group,) = groups
        used = group.post_backward
        return used if isinstance(used, _UsedParameters) else _UsedParameters(group)

    @property
    def parts(self) -> list[Part]:
        places = [(p, p._module_info) for p in self._group.fsdp_params]
        return [
            Part(
                place.module,
                place.param_name,
                p.padded_sharded_param_size.numel(),
                p.sharded_size,
            )
            for p, place in places
        ]

    def __call__(self, *unused: Any) -> None:
        parameters = self._group.fsdp_params
        gradients = [self._gradient_of(p) for p in parameters]
        for p, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                refuse_sparse_gradient(p._param_fqn, gradient)
        self.indices = [i for i, gradient in enumerate(gradients) if gradient is not None]
        self._post_backward(*unused)

    def _gradient_of(self, p: Any) -> Tensor | None:
        """Return what FSDP will pack of a parameter, or a substitute that is as sparse."""
        if not hasattr(p, "_unsharded_param"):
            return None
        if p.unsharded_accumulated_grad is not None:
            return p.unsharded_accumulated_grad
        with_zeros = getattr(self._group, "reduce_scatter_unused_params", False)  # PyTorch 2.14
        if p.unsharded_param.grad is None and with_zeros and p.unsharded_param.requires_grad:
            return p.unsharded_param
        return p.unsharded_param.grad
