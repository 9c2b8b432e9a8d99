"""1BitSGD: signs, and the mean of the values of either sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.levels import level_values
from gcbench.core.codecs.one_pass import Kinds, Parameters
from gcbench.core.codecs.scales import mean_where
from gcbench.core.compressor import Properties
from gcbench.core.methods.quantizers import Signs


@kernel
def _means_of_sides(v: Tensor) -> Tensor:
    nonnegative = v >= 0
    # Not v < 0, because a NaN is sent as a negative sign and has to show in that mean.
    return torch.stack([mean_where(v, ~nonnegative), mean_where(v, nonnegative)], dim=-1)


@dataclass(frozen=True)
class OneBit(Signs):
    """1BitSGD: the sign of each value, and the means of the values of either sign in a bucket.

    Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
    Distributed Training of Speech DNNs", Interspeech 2014; the baseline 1BitSGD of QSGD. For a
    bucket v of d consecutive values of a tensor:

        Q(v_i) = mean of {v_j : v_j >= 0} where v_i >= 0,    mean of {v_j : v_j < 0} where v_i < 0

    which is the closest to v of all codes with a threshold at zero. Deterministic and biased: meant
    for error feedback.

    Sends one bit per value and two float32 reconstruction points per bucket.

    Differences from the paper: buckets take the place of the columns of a weight matrix. With the
    default exchange, every worker gathers all codes; the paper's workers each average a stripe of
    the gradient and quantize it again, with error feedback for the stripe, which is
    `exchange=scatter_coded`.
    """

    kinds: ClassVar[Kinds] = Kinds("sides", "reaches", "level")
    properties: ClassVar[Properties] = Properties(contractive=True)

    def fit(self, v: Tensor) -> Tensor:
        return _means_of_sides(v)

    def value(self, codes: Tensor, parameters: Parameters) -> Tensor:
        return level_values(codes, parameters)
