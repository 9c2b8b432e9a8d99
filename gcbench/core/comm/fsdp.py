"""FSDP2's parameter groups: the gradient of each is one flat tensor, split into shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import Self

from gcbench.core.comm.ddp import refuse_sparse_gradient
from gcbench.core.comm.transport import all_gather_flat

if TYPE_CHECKING:  # Importing it takes long.
    from torch.distributed.fsdp import FSDPModule

FlatHook = Callable[[Tensor, Sequence[int]], Tensor]
"""Called in the backward pass with a parameter group's gradient `[n]`, and with the indices of the
parameters in it; returns a mean over workers: of this worker's shard where the gradient is that of
all shards, else of the gradient itself, which it may overwrite.
"""

GatherHook = Callable[[Tensor, bool], Tensor]
"""Called with this process's flat shard `[n]` of a parameter group, and with whether a backward
pass needs it again; returns the shards of all, `[W, n]`.
"""


class Part(NamedTuple):
    """A parameter's place in its module, and what a flat shard has of it."""

    module: nn.Module
    name: str
    values: int  # with padding, which is at their end
    shape: torch.Size  # of this process's shard, without padding


# PyTorch 2.14 warns of the name that earlier versions have.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


Hook = TypeVar("Hook", FlatHook, GatherHook)


class _Flat(Generic[Hook]):
    """A collective of a `fully_shard` module that calls `hook`, or if it is None that of torch."""

    def __init__(self, module: FSDPModule) -> None:
        self.hook: Hook | None = None
        self._group = param_group_of(module)

    @classmethod
    def of(cls, module: FSDPModule, *others: Any) -> Self:
        """Return a new one of `module`. Raises RuntimeError if the one that it has is in use."""
        had = _made.setdefault(module, {})
        if cls in had and had[cls].hook is not None:
            raise RuntimeError("this module has a gcbench hook in use")
        had[cls] = made = cls(module, *others)
        return made

    @property
    def parts(self) -> list[Part]:
        """The parameters of the group, in the order in which a flat tensor holds them."""
        places = [(p, p._module_info) for p in self._group.fsdp_params] if self._group else []
        return [
            Part(
                place.module,
                place.param_name,
                p.padded_sharded_param_size.numel(),
                p.sharded_size,
            )
            for p, place in places
        ]

    @property
    def adds_up(self) -> bool:
        """Return whether gradients that are reduced now are added to those of earlier passes."""
        params = self._group.fsdp_params if self._group else []
        return any(p.sharded_param.grad is not None for p in params)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


_made: WeakKeyDictionary[FSDPModule, dict[type, Any]] = WeakKeyDictionary()


class FlatGradient(_Flat[FlatHook]):
    """The hook of a `fully_shard` module that passes on its parameter group's gradient.

    Without `replicas`, it replaces the reduce-scatter and passes on the gradient of all shards.
    With `replicas`, the processes that hold the same shard in other nodes, it runs after the
    reduce-scatter and passes on the shard. Without a `hook`, it averages as if there were no
    compressor.
    """

    def __init__(self, module: FSDPModule, replicas: dist.ProcessGroup | None) -> None:
        super().__init__(module)
        self._replicas = replicas
        self._used = _UsedParameters.of(module)
        if replicas is None:
            module.set_custom_reduce_scatter(self)  # type: ignore[arg-type]  # duck-typed
        else:
            module.set_all_reduce_hook(self._average)

    @property
    def _indices(self) -> list[int]:
        assert self._used, "a module without parameters reduces nothing"
        return self._used.indices

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
        if self.hook is None:
            return _reduce_scatter(output_tensor, input_tensor, op, group, async_op)
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise ValueError(
                "set_gradient_divide_factor: a compressor returns a mean, which FSDP can only "
                "divide afterwards; type set_force_sum_reduction_for_comms(True), too"
            )
        output_tensor.copy_(self.hook(input_tensor, self._indices))
        if op == dist.ReduceOp.SUM:  # FSDP divides it later.
            output_tensor.mul_(group.size())
        return None

    def _average(self, reduced: Tensor) -> None:
        """Replace a shard of this node's gradient by its mean over all nodes."""
        assert self._replicas is not None
        if self.hook is not None:
            reduced.copy_(self.hook(reduced, self._indices))
        else:
            dist.all_reduce(reduced.div_(self._replicas.size()), group=self._replicas)


class FlatWeights(_Flat[GatherHook]):
    """The all-gather of a `fully_shard` module that passes on its parameter group's weights.

    Without a `hook`, it gathers as if there were no compressor.
    """

    def __init__(self, module: FSDPModule) -> None:
        super().__init__(module)
        module.set_custom_all_gather(self)  # type: ignore[arg-type]  # duck-typed

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gather `[n]` to `[W n]`, of which the input is a part, as FSDP calls it.

        Raises ValueError for parameters that FSDP hands over as bytes.
        """
        if self.hook is None:
            return all_gather_flat(output_tensor, input_tensor, group=group, async_op=async_op)
        if not input_tensor.is_floating_point():
            raise ValueError(
                "FSDP gathers these parameters as bytes, as of float8, and not as numbers; type "
                "handle.remove()"
            )
        again = self._group._training_state.name == "PRE_BACKWARD"
        output_tensor.copy_(self.hook(input_tensor, again).view(-1))
        return None


def param_group_of(module: FSDPModule) -> Any:
    """Return a module's parameter group; None if all of its parameters are in others."""
    state = module._get_fsdp_state()
    if not hasattr(state, "_fsdp_param_groups"):  # PyTorch 2.11
        return state._fsdp_param_group
    groups = state._fsdp_param_groups  # more than one only on several meshes
    return groups[0] if groups else None


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
        group = param_group_of(module)
        if group is None:
            return None
        used = group.post_backward
        return used if isinstance(used, _UsedParameters) else _UsedParameters(group)

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
