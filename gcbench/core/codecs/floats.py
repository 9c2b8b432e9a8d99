"""Floats of 4 to 16 bits, as the numbers that their bits are, and float32 values.

A float has a sign, E bits of exponent and M of mantissa. Without its sign, its bits are a number
that rises with its value, so that rounding carries into the exponent by itself. A magnitude below
the smallest normal one, 2^(1 - bias), is a multiple of 2^(1 - bias - M).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.core.codecs.noise import unit_interval


class FloatFormat(NamedTuple):
    exponent_bits: int
    mantissa_bits: int
    last: int  # the code of the largest magnitude, or of infinity

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def largest(self) -> float:
        """Return the value of `last`."""
        exponent, mantissa = divmod(self.last, 1 << self.mantissa_bits)
        return (1 + mantissa * 2.0**-self.mantissa_bits) * 2.0 ** (exponent - self.bias)


FORMATS = {
    "bfloat16": FloatFormat(8, 7, 0x7F80),
    "float16": FloatFormat(5, 10, 0x7C00),
    "e5m2": FloatFormat(5, 2, 0x7B),
    "e4m3": FloatFormat(4, 3, 0x7E),
    "e3m2": FloatFormat(3, 2, 0x1F),
    "e2m3": FloatFormat(2, 3, 0x1F),
    "e2m1": FloatFormat(2, 1, 0x07),
}


def to_float_codes(x: Tensor, form: FloatFormat, words: Tensor | None = None) -> Tensor:
    """Return the codes, int32, of float32 values; magnitudes above the largest become the largest.

    Values are rounded to the nearest, ties to even, or with random `words` up or down by chance, so
    that the mean is right. A NaN becomes the largest, or infinity.
    """
    dropped, bias = 23 - form.mantissa_bits, form.bias
    bits = x.view(torch.int32)
    magnitudes = (bits & 0x7FFFFFFF).clamp_max(0x7F800000)
    if words is None:
        added = (1 << (dropped - 1)) - 1 + ((magnitudes >> dropped) & 1)
    else:
        added = (words >> (32 - dropped)) & ((1 << dropped) - 1)
    codes = ((magnitudes + added) >> dropped) - ((127 - bias) << form.mantissa_bits)
    if bias < 127:  # others have the exponents of float32
        step = 2.0 ** (1 - bias - form.mantissa_bits)
        steps = (x.abs() * (1 / step)).clamp_max(1 << form.mantissa_bits)
        if words is None:
            rounded = steps.round()
        else:
            rounded = steps.floor() + (unit_interval(words) < steps - steps.floor())
        is_small = magnitudes < (128 - bias) << 23
        codes = torch.where(is_small, rounded.to(torch.int32), codes)
    return codes.clamp_max(form.last) | (((bits >> 31) & 1) << (form.bits - 1))


def of_float_codes(codes: Tensor, form: FloatFormat) -> Tensor:
    """Return the float32 values of codes, int32, of formats without infinities."""
    sign, dropped = form.bits - 1, 23 - form.mantissa_bits
    magnitudes = codes & ((1 << sign) - 1)
    normal = ((magnitudes << dropped) + ((127 - form.bias) << 23)).view(torch.float32)
    small = magnitudes.to(torch.float32) * 2.0 ** (1 - form.bias - form.mantissa_bits)
    values = torch.where(magnitudes < 1 << form.mantissa_bits, small, normal)
    return torch.where((codes >> sign) == 0, values, -values)
