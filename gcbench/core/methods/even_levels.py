"""Random rounding to evenly spaced levels: QSGD-s, as named in ORQ, and TernGrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gcbench.core.codecs.one_pass import Kinds
from gcbench.core.codecs.scales import max_norm
from gcbench.core.compressor import Properties
from gcbench.core.methods.quantizers import GridQuantizer, LevelQuantizer


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
