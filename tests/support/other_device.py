"""A device that has the name of a GPU and computes on the CPU.

Code that mixes tensors of two devices fails on it as it does on a GPU. Its tensors hold real
values, so that branches for GPUs are taken and what they compute can be compared. It has no streams
and no compiler, and works only on machines without a GPU: torch would pass its tensors to a real
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda", 0)


class There(Tensor):
    """A tensor on the device; `here` has its values, on the CPU."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> There:
        there: There = Tensor._make_wrapper_subclass(
            cls, here.shape, here.stride(), dtype=here.dtype, device=DEVICE
        )
        there.here = here
        return there

    def tolist(self) -> Any:
        """Return the values, which torch refuses for subclasses."""
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, dict(kwargs or {}))


class OtherDevice(TorchDispatchMode):
    """A context in which tensors can be made on the device."""

    _mode_key = torch._C._TorchDispatchModeKey.FAKE  # else torch looks for a driver

    def __init__(self) -> None:
        super().__init__()
        torch._C._ensureCUDADeviceGuardSet()

    def __enter__(self) -> OtherDevice:
        # So that torch.tensor(..., device=...) calls __torch_dispatch__, too.
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, dict(kwargs or {}))


def move_there(x: Tensor) -> Tensor:
    return There(x.clone())


def bring_back(x: Tensor) -> Tensor:
    assert isinstance(x, There), "this tensor was left on the CPU"
    return x.here


_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


def _run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, There)]
    if there and func not in _COPIES and any(x.dim() for x in tensors if not isinstance(x, There)):
        raise RuntimeError(
            f"{func}: expected all tensors to be on the same device, but found {DEVICE} and cpu"
        )
    asked = kwargs.get("device")
    result_there = bool(there) if asked is None else torch.device(asked).type == DEVICE.type
    if asked is not None:
        kwargs["device"] = torch.device("cpu")
    given = {id(x.here): x for x in there}  # operations in place return their argument

    def as_found(x: Any) -> Any:
        return (
            x
            if not (isinstance(x, Tensor) and result_there)
            else given[id(x)]
            if id(x) in given
            else There(x)
        )

    return tree_map(as_found, func(*_here(args), **_here(kwargs)))


def _here(tree: Any) -> Any:
    return tree_map(lambda x: x.here if isinstance(x, There) else x, tree)
