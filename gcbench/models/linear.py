"""One linear layer: linear regression with a squared loss, logistic regression with a cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn


class Linear(nn.Sequential):
    def __init__(self, shape: Sequence[int], outputs: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(prod(shape), outputs))
