"""A method as somebody outside of gcbench would write it.

It consists of this file and `outside_conf/compressor/powers.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench import Codec, Properties
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.packing import pack, unpack

MANTISSA_BITS = 23


@dataclass(frozen=True)
class Natural(Codec):
    """Natural compression: every value is rounded to one of the two powers of two around it.

    Horvath et al., "Natural Compression for Distributed Deep Learning", arXiv 1905.10988,
    definition 1:

        C(t) = sgn(t) 2^floor(log2 |t|)  with probability p
               sgn(t) 2^ceil(log2 |t|)   with probability 1 - p
        p    = (2^ceil(log2 |t|) - |t|) / 2^floor(log2 |t|)

    so that E[C(t)] = t and E(C(t) - t)^2 <= t^2 / 8 (theorem 1). The mantissa of a float is 1 - p:
    a random number with as many bits is added, and the carry into the exponent is the choice.

    Sends 9 bits per value: the exponent of a float32 (8), and a sign.

    Differences from the paper: none; values smaller than 2^-126 are rounded to it or to zero.
    `compressor=natural` is gcbench's own; test_natural.py checks that both give the same bits.
    """

    properties: ClassVar[Properties] = Properties(unbiased=True, contractive=True)
    analytic_bits_per_value: ClassVar[float] = 9

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> list[Tensor]:
        chance = (noise.uniform() * 2**MANTISSA_BITS).to(torch.int32)
        exponents = (x.abs().view(torch.int32) + chance) >> MANTISSA_BITS
        return [exponents.to(torch.uint8), pack(torch.signbit(x).to(torch.uint8), 1)]

    def decode_add(self, message: list[Tensor], segments: tuple[int, ...], out: Tensor) -> None:
        exponents, signs = message
        powers = (exponents.to(torch.int32) << MANTISSA_BITS).view(torch.float32)
        out += torch.where(unpack(signs, out.shape[1], 1) == 1, -powers, powers)
