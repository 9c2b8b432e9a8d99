"""The split of samples into those to train on and those held out to score a model on."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Split = Literal["test", "valid"]


def hold_out(samples: int, share: int = 10) -> tuple[Tensor, Tensor]:
    """Return rows to train on and rows held out.

    The latter are the last `1 / share` of a permutation that no seed changes.
    """
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0))
    kept, held = order.split([samples - samples // share, samples // share])
    return kept, held
