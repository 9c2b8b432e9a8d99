"""BinGrad: one bit a value, partially biased (pb) or biased (b)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.codecs.chunks import chunks
from gcbench.codecs.levels import add_levels, clamp_level, even_codes, even_values, two_means
from gcbench.codecs.noise import Noise
from gcbench.codecs.radix import pack_digits, unpack_digits
from gcbench.compressors.base import Properties
from gcbench.compressors.bucketed import Bucketed
from gcbench.compressors.exchange import Message


@dataclass(frozen=True)
class BinGradPB(Bucketed):
    """Xu, Huo and Huang, "Optimal Gradient Quantization Condition for Communication-Efficient Distributed Training", 2020,
    equations 14 and 15.

    Levels -b and b for the D values of a bucket. Values between them are rounded to either, with E[Q(v)] = v; those outside
    are clamped, which is where the bias comes from:

        Q(v) = b with probability (v + b) / (2 b), else -b, for |v| < b;    b sgn(v) otherwise
        b D = sum over |v_i| >= b of |v_i|

    The error |v|^2 - 2 (sum over |v_i| < b of v_i^2) - b^2 D is below |v|^2 for every v.

    Sends a bit a value and a float32 b a bucket.

    Differences from the paper: the last case of equation 14 has its bounds swapped. Equation 15 seldom has a solution among
    the values; b is where its two sides cross, the least error of all real numbers. All workers get the codes of all, where
    the paper has a server. Buckets restart at every tensor.
    """

    properties: ClassVar[Properties] = Properties(contractive=True)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        buckets = self.buckets(segments, x.device)
        scales = buckets.reduce(x, clamp_level)
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        for start, stop in chunks(x.shape[1], x.device):
            b = buckets.expand(scales, start, stop)
            codes[:, start:stop] = even_codes(x[:, start:stop], b, 2, noise.uniform(start, stop))
        return [pack_digits(codes, 2), scales]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        packed, scales = message
        buckets = self.buckets(segments, out.device)
        codes = unpack_digits(packed, out.shape[1], 2)
        for start, stop in chunks(out.shape[1], out.device):
            out[:, start:stop] += even_values(codes[:, start:stop], buckets.expand(scales, start, stop), 2)


@dataclass(frozen=True)
class BinGradB(Bucketed):
    """Xu, Huo and Huang, "Optimal Gradient Quantization Condition for Communication-Efficient Distributed Training", 2020,
    equations 16 and 17.

        Q(v) = b_-1 for v < b_0, else b_1;    b_0 the mean of the bucket, b_-1 and b_1 the means of the values below it and not

    Deterministic. The error |v|^2 - sum of n_k b_k^2 over both sides is below |v|^2 for every v.

    Sends a bit a value and two float32 levels a bucket.

    Differences from the paper: none in the code: b_0 is the mean, its "ease of implementation", rather than the middle of the
    two levels. All workers get the codes of all, where the paper has a server. Buckets restart at every tensor.
    """

    properties: ClassVar[Properties] = Properties(contractive=True)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        buckets = self.buckets(segments, x.device)
        low, b0, high = buckets.reduce(x, two_means).unbind(2)
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        for start, stop in chunks(x.shape[1], x.device):
            codes[:, start:stop] = x[:, start:stop] >= buckets.expand(b0, start, stop)
        return [pack_digits(codes, 2), torch.stack([low, high], dim=2)]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        packed, tables = message
        add_levels(unpack_digits(packed, out.shape[1], 2), tables, self.buckets(segments, out.device), out)
