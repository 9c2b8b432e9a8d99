"""Forward and backward passes in bfloat16, also on CPUs without instructions for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

# The functions that torch.autocast runs in bfloat16, under the names by which models call them.
PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
        F.linear,
        F.bilinear,
        F.scaled_dot_product_attention,
        F.multi_head_attention_forward,
        torch.matmul,
        torch.mm,
        torch.bmm,
        torch.addmm,
        torch.baddbmm,
        torch.einsum,
        Tensor.matmul,
        Tensor.__matmul__,
        Tensor.mm,
        Tensor.bmm,
        torch.lstm,
        torch.gru,
        torch.rnn_tanh,
        torch.rnn_relu,
    }
)


def has_fast_bf16() -> bool:
    """Return whether torch has fast products in bfloat16 for this CPU (on x86, with AVX-512).

    On other CPUs torch's take 4 to 20 times as long as those in fp32, and its LSTM does not run.
    """
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@contextmanager
def autocast_bf16(device: str) -> Iterator[None]:
    """Compute products in bfloat16 in this context, like `torch.autocast` but fast on any CPU."""
    slow = device == "cpu" and not has_fast_bf16()
    with torch.autocast(device, torch.bfloat16), ProductsInFp32() if slow else nullcontext():
        yield


class ProductsInFp32(TorchFunctionMode):
    """A mode that computes in fp32 the products that `torch.autocast` would compute in bfloat16.

    Operands are rounded to bfloat16 beforehand, and results afterwards. Processors with bfloat16
    instructions also sum exact products in fp32, so that only the order of the sums differs.
    Nothing is rounded within an attention or a recurrent layer. Gradients are rounded in the same
    places in the backward pass.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in PRODUCTS or not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, _round, (args, kwargs))
        with torch.autocast("cpu", enabled=False):
            results = func(*args, **kwargs)
        return tree_map_only(Tensor, partial(_cast, dtype=torch.bfloat16), results)


def _round(operand: Tensor) -> Tensor:
    return _cast(_cast(operand, torch.bfloat16), torch.float32)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in `dtype` if autocast would cast it; doubles, integers and masks stay."""
    return tensor.to(dtype) if tensor.dtype in (torch.float32, torch.bfloat16) else tensor
