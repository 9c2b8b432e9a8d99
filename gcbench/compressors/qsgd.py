"""QSGD: stochastic quantisation to evenly spaced levels, a scale a bucket."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gcbench.codecs.buckets import buckets_of
from gcbench.codecs.chunks import chunks
from gcbench.codecs.noise import Noise
from gcbench.codecs.packing import pack, unpack, width_of
from gcbench.codecs.quantise import NORMS, Norm, dequantise, quantise
from gcbench.compressors.base import Properties
from gcbench.compressors.exchange import Message


@dataclass(frozen=True)
class QSGD:
    """Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017, section 3.1.

    For a bucket v of d consecutive values of a tensor, with scale ||v||:

        Q_s(v_i) = ||v|| sgn(v_i) xi_i,    xi_i in {0, 1/s, ..., 1} with E[xi_i] = |v_i| / ||v||

    so that E[Q_s(v)] = v and, with the 2-norm, E||Q_s(v) - v||^2 <= min(d / s^2, sqrt(d) / s) ||v||^2 (lemma 3.1).

    Sends per tensor of n values, all from the gathered tensors: ceil(log2(2 s + 1)) bits a value (b bits carry
    s = 2^(b-1) - 1, sign included) and a float32 scale a bucket.

    Differences from the paper: `norm=linf` (the maximum) is what its experiments use, `l2` is its theory. Buckets restart at
    every tensor. Codes are packed at fixed width rather than Elias coded.
    """

    levels: int  # s, positive levels; 2 s + 1 codes
    bucket_size: int  # d, values that share a scale
    norm: Norm = "linf"

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 127:
            raise ValueError(f"levels={self.levels}: a code holds 1 to 127 levels (bits=2 to bits=8); type levels=7 or bits=4")
        if self.bucket_size < 1:
            raise ValueError(f"bucket_size={self.bucket_size}: type a number of values of at least 1, as in bucket_size=512")
        if self.norm not in NORMS:
            raise ValueError(f"norm={self.norm}: type norm=linf or norm=l2")

    @property
    def properties(self) -> Properties:
        # Worst variance of a bucket against |v|^2: at most d / (4 s^2), from d values half-way between two levels.
        return Properties(unbiased=True, contractive=self.bucket_size < 4 * self.levels**2)

    @property
    def width(self) -> int:
        return width_of(2 * self.levels + 1)

    @property
    def highest(self) -> int:
        return 2 * self.levels

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        scales = self.scales_of(x, segments)
        return [pack(self.codes_of(x, segments, scales, noise), self.width), scales]

    def scales_of(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        return buckets_of(segments, self.bucket_size, x.device).reduce(x, NORMS[self.norm])

    def codes_of(self, x: Tensor, segments: tuple[int, ...], scales: Tensor, noise: Noise) -> Tensor:
        buckets = buckets_of(segments, self.bucket_size, x.device)
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        for start, stop in chunks(x.shape[1], x.device):
            scale = buckets.expand(scales, start, stop)
            codes[:, start:stop] = quantise(x[:, start:stop], scale, self.levels, noise.uniform(start, stop))
        return codes

    def values_of(self, codes: Tensor, segments: tuple[int, ...], scales: Tensor) -> Tensor:
        unit = buckets_of(segments, self.bucket_size, codes.device).expand(scales / self.levels, 0, codes.shape[1])
        return codes.to(torch.float32).mul_(unit)

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        packed, scales = message
        buckets = buckets_of(segments, self.bucket_size, out.device)
        codes = unpack(packed, out.shape[1], self.width)
        for start, stop in chunks(out.shape[1], out.device):
            scale = buckets.expand(scales, start, stop)
            out[:, start:stop] += dequantise(codes[:, start:stop], scale, self.levels)
