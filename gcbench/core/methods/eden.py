"""EDEN: a random rotation, and the levels of least error for values of the normal law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from gcbench.core.codec import Codec, Message
from gcbench.core.codecs.buckets import buckets_of
from gcbench.core.codecs.fused import Fused
from gcbench.core.codecs.hadamard import add_rotated_back, padded, rotate
from gcbench.core.codecs.launches import is_fused
from gcbench.core.codecs.lloyd_max import level_table, rounded_levels
from gcbench.core.codecs.native import ADD, SUBTRACT, WRITE
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.one_pass import Kinds, Parameters
from gcbench.core.codecs.scales import fixed_sum, root_mean_square, sum_of_squares
from gcbench.core.compressor import Properties
from gcbench.core.fields import Bits, Checked, example
from gcbench.core.methods.bucketed import Bucketed, fused_of

Scale = Literal["unbiased", "biased", "rms"]


@dataclass(frozen=True)
class NormalLevels(Bucketed):
    """The nearest of 2^b levels that are best for normal values, times one scale per bucket.

    The code of a value v_i of a bucket of d values is that of the level q nearest to v_i / rms,
    with rms = |v|_2 / sqrt(d). See `Eden` for the scales.
    """

    bits: Bits
    scale: Scale
    random: ClassVar[bool] = False
    properties: ClassVar[Properties] = Properties()

    @property
    def base(self) -> int:
        return 1 << self.bits

    @property
    def kinds(self) -> Kinds:
        fit = {"unbiased": "unbiased", "biased": "biased", "rms": "length"}[self.scale]
        return Kinds(fit, "nearest_level", "times_level")  # type: ignore[arg-type]

    @property
    def levels_of_all(self) -> list[float]:
        levels, halfway = rounded_levels(self.bits)
        return [*levels, *halfway]

    def fit(self, v: Tensor) -> Tensor:
        rms = root_mean_square(v)
        if self.scale == "rms":
            return torch.stack([rms, rms], dim=-1)
        levels = self._level(self.code(v, [rms, rms.unsqueeze(-1)], None)).double()
        product = fixed_sum(v.double() * levels)
        if self.scale == "biased":
            scale = product / fixed_sum(levels.square())
        else:
            scale = sum_of_squares(v) / product
        return torch.stack([torch.where(product == 0, 0, scale).to(v.dtype), rms], dim=-1)

    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor:
        rms = parameters[1]
        unit = torch.where(rms < torch.inf, rms, 1)
        if not v.is_cpu:  # without a table, which would have to be copied there
            reached = [v >= place * unit for place in rounded_levels(self.bits)[1]]
            return reduce(torch.add, reached, torch.zeros_like(v, dtype=torch.int32))
        halfway = level_table(self.bits)[self.base :]
        codes, half = torch.zeros_like(v, dtype=torch.int32), self.base // 2
        while half:  # bisection; a NaN reaches nothing
            above = v >= halfway[(codes + (half - 1)).long()] * unit
            codes = torch.where(above, codes + half, codes)
            half //= 2
        return codes

    def value(self, codes: Tensor, parameters: Parameters) -> Tensor:
        return self._level(codes) * parameters[0]

    def sends(self, fitted: Tensor) -> Tensor:
        return fitted[..., :1]

    def _level(self, codes: Tensor) -> Tensor:
        if codes.is_cpu:
            return level_table(self.bits)[codes.long()]
        first, *others = rounded_levels(self.bits)[0]
        level = torch.full_like(codes, first, dtype=torch.float32)
        for code, other in enumerate(others, start=1):
            level = torch.where(codes >= code, other, level)
        return level


@dataclass(frozen=True)
class Eden(Checked, Codec):
    """EDEN: a random rotation R, and the nearest of 2^b levels for each rotated value.

    Vargaftik et al., "EDEN: Communication-Efficient and Robust Distributed Mean Estimation for
    Federated Learning", ICML 2022; with one bit DRIVE (Vargaftik et al., NeurIPS 2021). For a block
    x of d values, in float32:

        y = R x;    Q(y_i) = the level nearest to y_i sqrt(d) / |x|_2;    C(x) = S R^-1 Q(y)
        S = |x|_2^2 / <y, Q(y)>               scale=unbiased: E[C(x)] = x
        S = <y, Q(y)> / |Q(y)|_2^2            scale=biased: the least |C(x) - x|^2
        S = |x|_2 / sqrt(d)                   scale=rms: TurboQuant_mse (Zandieh et al., 2025)

    Rotated values are nearly normal whatever x is, so that the levels are those of least squared
    error for the normal law (Lloyd-Max, `lloyd_max.py`), +-0.80 and +-0.45, +-1.51 for one and two
    bits. With D_b, the error of these, E|C(x) - x|^2 / |x|^2 is 1 / (1 - D_b) - 1 unbiased (0.571,
    0.133, 0.0358, 0.0096 for 1 to 4 bits) and D_b otherwise (0.363, 0.1175, 0.0345, 0.0095).

    Each worker draws a rotation of its own, so that errors are independent and their mean over W
    workers has 1 / W of the squared error, even where gradients are equal. Decoders draw it, too.

    Sends b bits per value and one float32 scale per block of `bucket_size` values.

    Differences from the papers: R consists of two randomized Hadamard transforms (`hadamard.py`),
    where the theory has a uniformly random rotation and the authors' code one transform, with which
    blocks of few nonzero values are not nearly normal. With two, the bias of a block of d values is
    below 1 / d of its error, 2 % for 64. The last block of a tensor is filled up with zeros to a
    power of two from 64 on, which are sent, too. Bits are whole numbers; the paper also has
    fractions, and an entropy code.
    """

    bits: Annotated[Bits, example(4)]
    scale: Literal["unbiased", "biased", "rms"] = "unbiased"
    """scale of the levels that makes the code unbiased, or nearest (biased), or the root mean
    square [EDEN, section 3; TurboQuant, algorithm 1]"""
    bucket_size: Literal[16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768] = (
        4096  # of a block
    )
    noise: Noise | None = None  # of the messages to decode

    @property
    def properties(self) -> Properties:
        return Properties(
            unbiased=self.scale == "unbiased" and self.bucket_size >= 64,
            contractive=self.scale == "biased",
        )

    @property
    def analytic_bits_per_value(self) -> float:
        """Return the bits of a code, without scales."""
        return self.bits

    @property
    def width(self) -> int:
        return self.bits

    def by_bits(self) -> dict[int, Eden]:
        return {bits: replace(self, bits=bits) for bits in range(1, 9)}

    def codes_for(self, n: int) -> int:
        return padded((n,), self.bucket_size)[0]

    @cached_property
    def _rotated(self) -> NormalLevels:
        return NormalLevels(self.bits, self.scale, bucket_size=self.bucket_size)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        return self.encode_each(x.split(segments, dim=1), segments, noise)

    def encode_each(
        self, tensors: Sequence[Tensor], segments: tuple[int, ...], noise: Noise
    ) -> Message:
        if is_fused(tensors[0]):
            digits, fitted = self._fused(segments, tensors[0].device).encode(tensors, noise)
            return [digits, self._rotated.sends(fitted)]
        y = rotate(tensors, noise, self.bucket_size)
        return self._rotated.encode(y, padded(segments, self.bucket_size), noise)

    def _fused(self, segments: tuple[int, ...], device: torch.device) -> Fused:
        buckets = buckets_of(segments, self.bucket_size, device)
        return fused_of(self._rotated, buckets, rotates=True)

    def drawing(self, noise: Noise) -> Eden:
        return replace(self, noise=noise)

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        self._put([m.unsqueeze(0) for m in message], segments, 0, out, ADD)

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        workers, rows = messages[0].shape[:2]
        total = messages[0].new_empty(rows, sum(segments), dtype=torch.float32)
        if is_fused(total):
            self._fused(segments, total.device).decode(messages, total, WRITE, self.noise)
            return total
        for worker in range(workers):
            of_worker = [m[worker : worker + 1] for m in messages]
            self._put(of_worker, segments, worker * rows, total, ADD if worker else WRITE)
        return total.div_(workers) if workers > 1 else total

    def subtract_sent(self, x: Tensor, message: Message, segments: tuple[int, ...]) -> None:
        self._put([m.unsqueeze(0) for m in message], segments, 0, x, SUBTRACT)

    def _put(
        self, message: Message, segments: tuple[int, ...], first: int, out: Tensor, into: int
    ) -> None:
        """Put the values of messages `[1, r, ...]`, whose noise begins with row `first`."""
        assert self.noise is not None, "decode with codec.drawing(noise)"
        if is_fused(out):
            self._fused(segments, out.device).decode(message, out, into, self.noise)
            return
        y = self._rotated.decode_mean(message, padded(segments, self.bucket_size))
        noise = self.noise.rows(slice(first, first + len(y)))
        add_rotated_back(y, noise, self.bucket_size, out.split(segments, dim=1), into)
