"""BinGrad: one bit per value, partially biased (pb) or biased (b)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.core.codecs.levels import clamp_level, level_values, two_means
from gcbench.core.codecs.one_pass import Kinds, Parameters
from gcbench.core.compressor import Properties
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.quantizers import GridQuantizer


@dataclass(frozen=True)
class BinGradPB(GridQuantizer):
    """Partially biased BinGrad: random rounding to -b or b, clamped outside.

    Xu, Huo and Huang, "Optimal Gradient Quantization Condition for Communication-Efficient
    Distributed Training", 2020, equations 14 and 15.

    The D values of a bucket have the levels -b and b. Values between them are rounded to either,
    with E[Q(v)] = v; values outside are clamped, which causes the bias:

        Q(v) = b with probability (v + b) / (2 b), else -b, for |v| < b;    b sgn(v) otherwise
        b D = sum over |v_i| >= b of |v_i|

    The error |v|^2 - 2 (sum over |v_i| < b of v_i^2) - b^2 D is below |v|^2 for every v.

    Sends one bit per value and one float32 b per bucket.

    Differences from the paper: it swaps the bounds of the last case of equation 14. Equation 15
    rarely has a solution among the values; here b is where its two sides cross, which has the least
    error of all real numbers. Every worker receives all codes, where the paper has a server; with
    `exchange=sum`, b is the largest of all workers. Buckets restart at every tensor, unless
    `bucket_scope=gradient`.
    """

    kinds: ClassVar[Kinds] = Kinds("clamp", "grid", "grid")
    highest: ClassVar[int] = 1  # two codes
    properties: ClassVar[Properties] = Properties(contractive=True)
    analytic_bits_per_value: ClassVar[float] = 1

    def scale(self, v: Tensor) -> Tensor:
        return clamp_level(v)

    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor:
        b = parameters[0]
        return super().code(torch.minimum(torch.maximum(v, -b), b), parameters, words)


@dataclass(frozen=True)
class BinGradB(Bucketed):
    """Biased BinGrad: two levels, the means of the values below a bucket's mean and of the others.

    Xu, Huo and Huang, "Optimal Gradient Quantization Condition for Communication-Efficient
    Distributed Training", 2020, equations 16 and 17.

        Q(v) = b_-1 for v < b_0, else b_1

    where b_0 is the mean of the bucket, and b_-1 and b_1 are the means of the values below b_0 and
    of the others.

    Deterministic. With n_k values coded as b_k, the error |v|^2 - sum of n_k b_k^2 over both levels
    is below |v|^2 for every v.

    Sends one bit per value and two float32 levels per bucket.

    Differences from the paper: none in the code, which for the paper's "ease of implementation" has
    the mean as b_0 rather than the middle of the two levels. Every worker receives all codes, where
    the paper has a server. Buckets restart at every tensor, unless `bucket_scope=gradient`.
    """

    random: ClassVar[bool] = False
    kinds: ClassVar[Kinds] = Kinds("halves", "reaches", "level")
    properties: ClassVar[Properties] = Properties(contractive=True)
    analytic_bits_per_value: ClassVar[float] = 1

    @property
    def base(self) -> int:
        return 2

    def fit(self, v: Tensor) -> Tensor:
        return two_means(v)

    def sends(self, fitted: Tensor) -> Tensor:
        return fitted[..., ::2].contiguous()

    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor:
        return (v >= parameters[1]).to(torch.int32)

    def value(self, codes: Tensor, parameters: Parameters) -> Tensor:
        return level_values(codes, parameters)
