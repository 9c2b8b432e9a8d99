"""Linear: random rounding to the quantiles of a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gcbench.core.codecs.levels import quantile_levels
from gcbench.core.codecs.one_pass import Kinds
from gcbench.core.compressor import Properties
from gcbench.core.methods.quantizers import TableQuantizer


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
