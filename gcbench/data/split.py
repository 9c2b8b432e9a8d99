"""The split of samples into training samples and samples held out for scoring."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Split = Literal["test", "valid"]


def hold_out(samples: int, share: int = 10) -> tuple[Tensor, Tensor]:
    """Return the indices of training rows and of held-out rows.

    The latter are the last `1 / share` of a permutation that does not depend on the run's seed.
    """
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0))
    kept, held = order.split([samples - samples // share, samples // share])
    return kept, held
