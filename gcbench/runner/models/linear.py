"""One linear layer: linear regression, or logistic regression with cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn


class Linear(nn.Sequential):
    def __init__(self, shape: Sequence[int], outputs: int, bias: bool = True) -> None:
        super().__init__(nn.Flatten(), nn.Linear(prod(shape), outputs, bias=bias))


class Logistic(Linear):
    """A classifier of two classes with one weight vector.

    Its scores are 0 and w^T x, whose cross-entropy is the log-loss of w^T x.
    """

    def __init__(self, shape: Sequence[int], outputs: int, bias: bool = True) -> None:
        if outputs != 2:
            raise ValueError(
                f"model=logistic tells two classes apart, the data set has {outputs}; type "
                "model=linear"
            )
        super().__init__(shape, 1, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        score = super().forward(inputs)
        return torch.cat([torch.zeros_like(score), score], dim=1)
