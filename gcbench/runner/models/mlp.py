"""A multi-layer perceptron with ReLU between its layers, for vectors and (flattened) images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from gcbench.core.fields import Count


class MLP(nn.Sequential):
    def __init__(
        self,
        shape: Sequence[int],
        outputs: int,
        widths: Sequence[Count] = (1024, 1024),
    ) -> None:
        sizes = [prod(shape), *widths]
        hidden = [
            part
            for before, after in pairwise(sizes)
            for part in (nn.Linear(before, after), nn.ReLU())
        ]
        super().__init__(nn.Flatten(), *hidden, nn.Linear(sizes[-1], outputs))
