"""Natural compression: random rounding to powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.codecs.kernels import kernel
from gcbench.codecs.native import is_native, load_native
from gcbench.codecs.noise import Draws, Noise
from gcbench.codecs.packing import pack, packed_bytes, unpack
from gcbench.compressors.base import Properties
from gcbench.compressors.codec import Codec, Message

_MANTISSA_BITS = 23
_NOT_FINITE = 255  # the exponent of infinities and NaN


@dataclass(frozen=True)
class Natural(Codec):
    """Random rounding of every value to a power of two.

    Horvath et al., "Natural Compression for Distributed Deep Learning", MSML 2022, definition 1:

        C(t) = sgn(t) 2^floor(log2 |t|) with probability p(t), else sgn(t) 2^ceil(log2 |t|)
        p(t) = (2^ceil(log2 |t|) - |t|) / 2^floor(log2 |t|)

    so that E[C(t)] = t and E|C(v) - v|^2 <= |v|^2 / 8 (theorem 1), whatever the dimension. 1 - p is
    the mantissa of a float32: a random mantissa is added to it, and rounding is up if this carries
    into the exponent.

    Sends 9 bits per value, without scales: a sign, and the exponent of a float32.

    Differences from the paper: a magnitude below 2^-126 is rounded to 2^-126 or to zero, which is
    unbiased but not within the bound; one above 2^127 is rounded to 2^127, since float32 has no
    larger power of two. An infinity or a NaN arrives as an infinity.
    """

    properties: ClassVar[Properties] = Properties(unbiased=True, contractive=True)
    analytic_bits_per_value: ClassVar[float] = 9

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        if is_native(x):
            return _encode_native(x.contiguous(), noise)
        exponents = _random_exponents(x.view(torch.int32), noise.of())
        return [exponents, pack(torch.signbit(x).to(torch.uint8), 1)]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        exponents, signs = message
        if is_native(out):
            for e, s, row in zip(exponents, signs, out, strict=True):
                load_native().natural_decode(
                    *(e.data_ptr(), s.data_ptr(), len(row), row.data_ptr()),
                    torch.get_num_threads(),
                )
            return
        out += _bits_of(exponents, unpack(signs, out.shape[1], 1)).view(torch.float32)


def _encode_native(x: Tensor, noise: Noise) -> Message:
    lengths = [length for _, length in noise.runs]
    ends = torch.tensor(lengths).cumsum(0)
    starts = torch.tensor(noise.starts(lengths)).to(torch.int32).view(len(x), -1)
    exponents = torch.empty_like(x, dtype=torch.uint8)
    signs = exponents.new_empty(len(x), packed_bytes(x.shape[1], 1))
    for rows in zip(x, starts, noise.keys, exponents, signs, strict=True):
        values, start, key, *out = (row.data_ptr() for row in rows)
        load_native().natural_encode(
            *(values, x.shape[1], ends.data_ptr(), start, key, *out), torch.get_num_threads()
        )
    return [exponents, signs]


@kernel
def _random_exponents(bits: Tensor, draws: Draws) -> Tensor:
    """Return the exponents, uint8, to which floats with these bits are rounded."""
    magnitudes = bits & 0x7FFFFFFF
    mantissas = (draws.words() >> (32 - _MANTISSA_BITS)) & ((1 << _MANTISSA_BITS) - 1)
    rounded = ((magnitudes + mantissas) >> _MANTISSA_BITS).clamp_max(_NOT_FINITE - 1)
    is_finite = magnitudes < _NOT_FINITE << _MANTISSA_BITS
    return torch.where(is_finite, rounded, _NOT_FINITE).to(torch.uint8)


@kernel
def _bits_of(exponents: Tensor, signs: Tensor) -> Tensor:
    """Return the bits, int32, of the powers of two that have these exponents and signs."""
    return (exponents.to(torch.int32) << _MANTISSA_BITS) | (signs.to(torch.int32) << 31)
