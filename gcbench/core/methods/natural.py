"""Natural compression: random rounding to powers of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.core.codec import Codec, Message
from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.native import ADD, WRITE, address, addresses, is_native, load_native
from gcbench.core.codecs.noise import Draws, Noise
from gcbench.core.codecs.packing import pack, packed_bytes, unpack
from gcbench.core.compressor import Given, Grads, Properties

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
            return self.encode_each(x.contiguous().split(segments, dim=1), segments, noise)
        exponents = _random_exponents(x.view(torch.int32), noise.of())
        return [exponents, pack(torch.signbit(x).to(torch.uint8), 1)]

    def encode_each(
        self, tensors: Sequence[Tensor], segments: tuple[int, ...], noise: Noise
    ) -> Message:
        if is_native(tensors[0]):
            return _encode_native(tensors, segments, noise)
        return super().encode_each(tensors, segments, noise)

    def encode_corrected(self, given: Given, noise: Noise) -> tuple[Message, Grads]:
        tensors = given.tensors
        if given.keep or not is_native(tensors[0]):
            return super().encode_corrected(given, noise)
        left = given.room()
        message = _encode_native(tensors, given.segments, noise, given.before, left, given.alpha)
        return message, given.named(left)

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        exponents, signs = message
        if is_native(out):
            _decode_native([part.unsqueeze(0) for part in message], out, ADD)
            return
        out += _bits_of(exponents, unpack(signs, out.shape[1], 1)).view(torch.float32)

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        out = messages[0].new_empty(messages[0].shape[1:], dtype=torch.float32)
        if not is_native(out):
            return super().decode_mean(messages, segments)
        _decode_native(messages, out, WRITE)
        return out


def _encode_native(
    tensors: Sequence[Tensor],
    segments: tuple[int, ...],
    noise: Noise,
    residual: Sequence[Tensor] | None = None,
    left: Sequence[Tensor] | None = None,
    alpha: float = 1,
) -> Message:
    workers, n = len(tensors[0]), sum(segments)
    ends = torch.tensor(segments).cumsum(0)
    starts = noise.starts(segments)
    exponents = torch.empty(workers, n, dtype=torch.uint8)
    signs = exponents.new_empty(workers, packed_bytes(n, 1))
    for k, rows in enumerate(zip(starts, noise.keys, exponents, signs, strict=True)):
        places = (
            addresses(part and [x[k : k + 1] for x in part], 1, segments)
            for part in (tensors, residual, left)
        )
        first, key, of_exponents, of_signs = rows
        load_native().natural_encode(
            *(*places, alpha, n, len(segments), address(ends, torch.int64, len(segments))),
            *(address(first, torch.int32, len(segments)), address(key, torch.int32, 2)),
            address(of_exponents, torch.uint8, n),
            address(of_signs, torch.uint8, packed_bytes(n, 1)),
            torch.get_num_threads(),
        )
    return [exponents, signs]


def _decode_native(messages: Sequence[Tensor], out: Tensor, into: int) -> None:
    workers, n = len(messages[0]), out.shape[1]
    for k, row in enumerate(out):
        of_row = (
            addresses([part[:, k]], workers, [size], torch.uint8)
            for part, size in zip(messages, (n, packed_bytes(n, 1)), strict=True)
        )
        load_native().natural_decode(
            *(*of_row, workers, n, address(row, torch.float32, n), into), torch.get_num_threads()
        )


@kernel
def _random_exponents(bits: Tensor, draws: Draws) -> Tensor:
    """Return the exponents, uint8, to which floats with these bits are rounded."""
    magnitudes = bits & 0x7FFFFFFF
    mantissas = (draws.words(bits.shape[-1]) >> (32 - _MANTISSA_BITS)) & ((1 << _MANTISSA_BITS) - 1)
    rounded = ((magnitudes + mantissas) >> _MANTISSA_BITS).clamp_max(_NOT_FINITE - 1)
    is_finite = magnitudes < _NOT_FINITE << _MANTISSA_BITS
    return torch.where(is_finite, rounded, _NOT_FINITE).to(torch.uint8)


@kernel
def _bits_of(exponents: Tensor, signs: Tensor) -> Tensor:
    """Return the bits, int32, of the powers of two that have these exponents and signs."""
    return (exponents.to(torch.int32) << _MANTISSA_BITS) | (signs.to(torch.int32) << 31)
