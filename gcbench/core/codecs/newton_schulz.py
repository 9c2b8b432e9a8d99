"""Newton-Schulz's iteration, which makes a matrix about orthonormal."""

from __future__ import annotations

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan et al., "Muon", 2024


def orthonormalize(x: Tensor, steps: int = 5) -> Tensor:
    """Return a matrix `[k, l]`, k <= l, with the same singular vectors and values of about 1.

    In each step, all singular values s become a s + b s^3 + c s^5: from 0.01 to 1 of the norm, they
    end between 0.68 and 1.13 after five. A matrix of zeros stays one.
    """
    a, b, c = COEFFICIENTS
    x = x / x.abs().amax().clamp(min=torch.finfo(x.dtype).tiny)  # squares of tiny values are 0
    x = x / x.norm().clamp(min=1)  # which is at least 1 unless all values are 0
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
