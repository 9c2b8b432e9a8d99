"""ORQ, and the codes beside which its paper puts it: Linear, QSGD-s, TernGrad and BinGrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gcbench.core.codecs.levels import (
    clamp_level,
    level_values,
    orq_levels,
    quantile_levels,
    two_means,
)
from gcbench.core.codecs.one_pass import Kinds, Parameters
from gcbench.core.codecs.scales import max_norm
from gcbench.core.compressor import Properties
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.quantizers import GridQuantizer, LevelQuantizer, TableQuantizer

Halvings = Literal[3, 5, 9, 17, 33, 65, 129]


@dataclass(frozen=True)
class EvenLevels(LevelQuantizer, GridQuantizer):
    """Random rounding to levels evenly spaced up to a bucket's largest magnitude.

    The baseline QSGD-s of Xu, Huo and Huang, "Optimal Gradient Quantization Condition for
    Communication-Efficient Distributed Training", 2020, section 3.1: s levels in all, evenly spaced
    from -m to m with m = max|v_i| of a bucket.

        Q(v) = b_k with probability (v - b_(k-1)) / (b_k - b_(k-1)), else b_(k-1)
        b_k = m (2 k / (s - 1) - 1)

    so that E[Q(v)] = v. For odd s this is `qsgd` with norm=linf and (s - 1) / 2 levels above zero.

    With s = 3 it is Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed
    Deep Learning", NeurIPS 2017, equations 1 to 3:

        Q(v_i) = m sgn(v_i) b_i,    b_i in {0, 1} with P(b_i = 1) = |v_i| / m
        E|Q(v) - v|^2 = sum m |v_i| - v_i^2

    Sends log2(s) bits per value, rounded up so that words hold whole numbers of codes (1.6 for 3
    levels), and one float32 m per bucket.

    Differences from the papers: TernGrad clips values to 2.5 standard deviations of their tensor
    (`clip_sigma`), has one m per layer (`per_layer`), and in one of its options uses the largest m
    of all workers, which is `exchange=sum`; with other exchanges each worker has its own m. Every
    worker receives all codes, where both papers have a server. Buckets restart at every tensor,
    unless `bucket_scope=gradient`, as in ORQ's experiments.
    """

    kinds: ClassVar[Kinds] = Kinds("largest", "grid", "grid")

    @property
    def properties(self) -> Properties:
        # The expected squared error of a value is at most (m / (s - 1))^2, halfway between two
        # levels; the value of largest magnitude has none.
        return Properties(
            unbiased=True, contractive=self.shorter_than((self.level_count - 1) ** 2 + 1)
        )

    @property
    def highest(self) -> int:
        return self.level_count - 1

    def scale(self, v: Tensor) -> Tensor:
        return max_norm(v)


@dataclass(frozen=True)
class Linear(TableQuantizer):
    """Linear-s: random rounding to the quantiles of a bucket.

    The baseline Linear-s of Xu, Huo and Huang, "Optimal Gradient Quantization Condition for
    Communication-Efficient Distributed Training", 2020, section 5.

    The s levels of a bucket divide its cumulative distribution evenly: b_k is its quantile k / (s -
    1), from the minimum to the maximum. A value is rounded to either of its neighboring levels, so
    that E[Q(v)] = v (equation 7).

    Sends log2(s) bits per value, rounded up so that words hold whole numbers of codes, and s
    float32 levels per bucket.

    Differences from the paper: it does not define quantiles that fall between two values; here they
    are the nearest value. Every worker receives all codes, where the paper has a server; the other
    exchanges are described in `ORQ`. Buckets restart at every tensor, unless
    `bucket_scope=gradient`.
    """

    kinds: ClassVar[Kinds] = Kinds("quantiles", "table", "level")

    @property
    def properties(self) -> Properties:
        # Levels are dense where values are, so that no bound holds for values elsewhere.
        return Properties(unbiased=True)

    def fit(self, v: Tensor) -> Tensor:
        return quantile_levels(v, self.level_count)


@dataclass(frozen=True)
class ORQ(TableQuantizer):
    """ORQ: random rounding to the levels of least error.

    Xu, Huo and Huang, "Optimal Gradient Quantization Condition for Communication-Efficient
    Distributed Training", 2020, algorithm 1.

    A value v between two neighboring levels of its bucket G is rounded to either, so that E[Q(v)]
    = v (equation 7):

        Q(v) = b_k with probability (v - b_(k-1)) / (b_k - b_(k-1)), else b_(k-1)

    The outermost of the s = 2^K + 1 levels are the bucket's minimum and maximum. From these inward,
    the level between b_l and b_r is that of least error E|v - Q(v)|^2, at which (equation 12)

        |{b_k <= v <= b_r}| = sum over b_l <= v <= b_r of (v - b_l) / (b_r - b_l)

    Sends log2(s) bits per value, rounded up so that words hold whole numbers of codes (1.6, 2.33,
    3.2 for 3, 5, 9 levels), and s float32 levels per bucket: with 2048 values, 19.4, 13.3 and 9.6
    times less than fp32, where the paper counts 20.2, 13.8 and 10.1 without the levels.

    Differences from the paper: its recursion passes K on unchanged and would never end; here it
    passes K - 1. Equation 12 has no exact solution among the values of a bucket; the value of least
    error is taken, not that with the nearest count. Every worker receives, decodes and averages all
    codes, where the paper has a server. Its options for the server's answer are `exchange=sum` (a:
    levels "coherent among all the worker nodes", `CountExchange`) and `exchange=scatter_coded` (b:
    the average is quantized again, with every worker as a server). Clipping (`clip_sigma`) is per
    tensor. Buckets restart at every tensor, except with scatter and with `bucket_scope=gradient`,
    which is what the paper does.
    """

    kinds: ClassVar[Kinds] = Kinds("least_error", "table", "level")
    level_count: Halvings

    @property
    def properties(self) -> Properties:
        # With R = max - min, |v|^2 >= R^2 / 2, and the error is at most (D - 2) R^2 / 16, the bound
        # for a level in the middle.
        return Properties(unbiased=True, contractive=self.shorter_than(10))

    def fit(self, v: Tensor) -> Tensor:
        return orq_levels(v, self.level_count)


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
