"""The refusal of sparse gradients, which no compressor takes."""

from __future__ import annotations

import torch
from torch import Tensor


def sparse_refusal(name: str) -> str:
    """Return the sentence that refuses the sparse gradients of a module or parameter."""
    return (
        f"{name}: a compressor takes no sparse gradients; type sparse=False where this embedding "
        "is made or called"
    )


def refuse_sparse_gradient(name: str, gradient: Tensor) -> None:
    """Raise ValueError if the gradient of the parameter `name` is sparse."""
    if gradient.layout is not torch.strided:
        raise ValueError(sparse_refusal(name))
