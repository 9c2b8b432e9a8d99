"""Lossless floats: exponents in an entropy code, signs and mantissas as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gcbench.core.codec import Codec, Message
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.packing import decode_ans, encode_ans
from gcbench.core.compressor import Properties
from gcbench.core.fields import Checked


@dataclass(frozen=True)
class Exponents(Checked, Codec):
    """Lossless compression of floats whose exponents are few: an entropy code of the exponents.

    ZipCCL (2026), "Efficient Lossless Data Compression of Communication Collectives", and DietGPU
    (Johnson, 2022) code the exponents of bfloat16 and float32 values by asymmetric numeral systems,
    and send their signs and mantissas as they are, which look like noise. For n values, of which
    n_e have the exponent e:

        bits = (1 + mantissa bits) n + sum_e n_e log2(n / n_e)

    Exponents of normal values have an entropy of 2.5 to 3 bits of their 8, whatever the scale.

    Every worker gathers all gradients, exact to the value, and takes their mean in fp32, which has
    neither the sign of a zero nor the bits of a NaN. With `format=bf16` they are first rounded to
    it, as for `bf16`.

    Sends 24 bits (bf16: 8) per value, the exponents, and a table of 512 bytes.

    Differences from these: they compress each message of a ring or an all-to-all, with a table that
    is fixed (ZipCCL) or made per block of values. Here one table serves the gradient, and messages
    are gathered, so that fewer bits than in an all-reduce are received by two workers only.
    """

    format: Literal["fp32", "bf16"] = "fp32"
    """what is coded without loss: fp32, or gradients rounded to bf16"""

    @property
    def properties(self) -> Properties:
        exact = self.format == "fp32"
        return Properties(exact=exact, contractive=True, mean_linear=exact)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        exponents, rest = self.split(x)
        words, weights = encode_ans(exponents, 256)
        return [words, weights, rest]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the exponents `[w, n]` and the other bits `[w, bytes]` of values, both uint8."""
        values = x.to(torch.float32 if self.format == "fp32" else torch.bfloat16).contiguous()
        *low, middle, high = _bytes_of(values).unbind(2)
        exponents = high << 1 | middle >> 7
        return exponents, torch.cat([*low, middle & 0x7F | high & 0x80], dim=1)

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        words, weights, packed = message
        exponents = decode_ans(words, weights, out.shape[1])
        *low, top = packed.split(out.shape[1], dim=1)
        values = torch.empty_like(out, dtype=torch.float32 if low else torch.bfloat16)
        parts = [*low, exponents << 7 | top & 0x7F, exponents >> 1 | top & 0x80]
        torch.stack(parts, dim=2, out=_bytes_of(values))
        out += values

    def lengths_of(self, message: Message) -> list[Tensor | None]:
        words, _, _ = message
        return [words[:, 0] + 1, None, None]


def _bytes_of(x: Tensor) -> Tensor:
    """Return a view `[w, n, bytes]`, uint8, of floats `[w, n]`, the sign's byte last."""
    return x.view(torch.uint8).unflatten(1, (x.shape[1], x.itemsize))
