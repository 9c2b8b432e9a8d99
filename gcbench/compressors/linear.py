"""Linear: random rounding to the quantiles of a bucket."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gcbench.codecs.levels import add_levels, quantile_levels, random_codes
from gcbench.codecs.noise import Noise
from gcbench.codecs.radix import pack_digits, unpack_digits
from gcbench.compressors.base import Properties
from gcbench.compressors.bucketed import Bucketed, check_level_count
from gcbench.compressors.exchange import Message


@dataclass(frozen=True)
class Linear(Bucketed):
    """The baseline Linear-s of Xu, Huo and Huang, "Optimal Gradient Quantization Condition for Communication-Efficient
    Distributed Training", 2020, section 5.

    The s levels of a bucket divide its cumulative distribution evenly: b_k is its quantile k / (s - 1), from the minimum to
    the maximum. A value is rounded to either of its neighbouring levels, so that E[Q(v)] = v (equation 7).

    Sends log2(s) bits a value, rounded up to whole digits in a word, and s float32 levels a bucket.

    Differences from the paper: it does not say how quantiles between two values are read; the nearest value is taken here.
    All workers get the codes of all, where the paper has a server. Buckets restart at every tensor.
    """

    level_count: int  # s

    def __post_init__(self) -> None:
        super().__post_init__()
        check_level_count(self.level_count)

    @property
    def properties(self) -> Properties:
        return Properties(unbiased=True)  # levels crowd where values do, so that no bound holds for the others

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        buckets = self.buckets(segments, x.device)
        tables = buckets.reduce(x, lambda v: quantile_levels(v, self.level_count))
        return [pack_digits(random_codes(x, tables, buckets, noise), self.level_count), tables]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        packed, tables = message
        codes = unpack_digits(packed, out.shape[1], self.level_count)
        add_levels(codes, tables, self.buckets(segments, out.device), out)
