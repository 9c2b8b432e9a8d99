"""Linear: random rounding to the quantiles of a bucket."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gcbench.codecs.levels import quantile_levels
from gcbench.compressors.base import Properties
from gcbench.compressors.quantizers import TableQuantizer


@dataclass(frozen=True)
class Linear(TableQuantizer):
    """Linear-s: random rounding to the quantiles of a bucket.

    The baseline Linear-s of Xu, Huo and Huang, "Optimal Gradient Quantization Condition for
    Communication-Efficient Distributed Training", 2020, section 5.

    The s levels of a bucket divide its cumulative distribution evenly: b_k is its quantile k / (s -
    1), from the minimum to the maximum. A value is rounded to either of its neighboring levels, so
    that E[Q(v)] = v (equation 7).

    Sends log2(s) bits a value, rounded up to whole digits in a word, and s float32 levels a bucket.

    Differences from the paper: it does not say how quantiles between two values are read; the
    nearest value is taken here. All workers get the codes of all, where the paper has a server;
    `exchange` as in `ORQ`. Buckets restart at every tensor, unless `bucket_scope=gradient`.
    """

    @property
    def properties(self) -> Properties:
        # Levels crowd where values do, so that no bound holds for the others.
        return Properties(unbiased=True)

    def fit(self, v: Tensor) -> Tensor:
        return quantile_levels(v, self.level_count)
