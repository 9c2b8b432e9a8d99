"""Signs with one scale: scaled signSGD and PowerSGD's Sign + Norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from gcbench.core.codecs.one_pass import Kinds, Parameters
from gcbench.core.codecs.scales import mean_magnitude, root_mean_square
from gcbench.core.compressor import Properties
from gcbench.core.fields import Neutral
from gcbench.core.methods.quantizers import Signs


@dataclass(frozen=True)
class ScaledSign(Signs):
    """Scaled signSGD: signs times one magnitude per bucket or tensor.

    Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
    ICML 2019, algorithm 1; ORQ's baseline "Scaled SignSGD" (equation 13) and, with one scale per
    tensor and with error feedback, PowerSGD's "Sign + Norm":

        Q(v) = (||v||_1 / d) sign(v)    for the d values v of a tensor or of a bucket

    No other signs with a single magnitude are closer to v: ||Q(v) - v||^2 = (1 - ||v||_1^2 / (d
    ||v||_2^2)) ||v||_2^2. Deterministic and biased.

    `scale=rms`, as in 1-bit Adam (Tang et al., ICML 2021), keeps the length of v instead:

        Q(v) = (||v||_2 / sqrt(d)) sign(v)

    which is 1.25 times as long for normal values. ||Q(v) - v||_2 can exceed ||v||_2, nearly sqrt(2)
    times where one value is not 0; but max|Q(v) - v| <= sqrt(1 - 1 / d) max|v|, so that the
    residual of error feedback stays bounded.

    Sends one bit per value and one float32 scale per bucket or tensor.

    Differences from the papers: sign(0) = +1, because one bit cannot encode zero; the error above
    stays the same. ORQ's text has one scale for the whole gradient, its experiments have buckets
    (`bucket_scope=gradient`).
    """

    scale: Annotated[Literal["mean", "rms"], Neutral("mean")] = "mean"
    """magnitude of the signs of a bucket: its mean magnitude, which is nearest, or its root mean
    square, which keeps the length [Karimireddy et al. (2019), algorithm 1; 1-bit Adam, section
    4]"""

    properties: ClassVar[Properties] = Properties(contractive=True)

    @property
    def kinds(self) -> Kinds:
        return Kinds(self.scale, "reaches", "signed")

    def fit(self, v: Tensor) -> Tensor:
        magnitude = mean_magnitude if self.scale == "mean" else root_mean_square
        return magnitude(v).unsqueeze(-1)

    def value(self, codes: Tensor, parameters: Parameters) -> Tensor:
        return torch.where(codes > 0, parameters[0], -parameters[0])
