"""Tensors cut into blocks of one size, and floats of few bits in blocks that share a scale.

The last block of a tensor is padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gcbench.core.codecs.floats import FORMATS, FloatFormat, of_float_codes, to_float_codes
from gcbench.core.codecs.kernels import kernel

E4M3 = FORMATS["e4m3"]  # of the scale of a block in NVFP4


def count_blocks(segments: Sequence[int], size: int) -> list[int]:
    """Return how many blocks each tensor takes; its last one may be shorter."""
    return [-(-n // size) for n in segments]


def in_blocks(tensors: Sequence[Tensor], size: int) -> Tensor:
    """Return tensors `[w, n]` as blocks `[w, blocks, size]`, one tensor after the other."""
    segments = [x.shape[1] for x in tensors]
    if len(tensors) == 1 and segments[0] % size == 0:
        return tensors[0].reshape(len(tensors[0]), -1, size)
    blocks = tensors[0].new_zeros(len(tensors[0]), sum(count_blocks(segments, size)), size)
    torch._foreach_copy_(of_blocks(blocks, segments), list(tensors))
    return blocks


def of_blocks(blocks: Tensor, segments: Sequence[int]) -> list[Tensor]:
    """Return the tensors in blocks `[w, blocks, size]` as views `[w, n]`."""
    size = blocks.shape[2]
    spans = blocks.flatten(1).split([size * count for count in count_blocks(segments, size)], dim=1)
    return [span[:, :n] for span, n in zip(spans, segments, strict=True)]


@kernel
def largest_of(blocks: Tensor) -> Tensor:
    return blocks.abs().amax(-1)


@kernel
def shared_exponents(blocks: Tensor, element: FloatFormat, up: bool) -> Tensor:
    """Return the scales of MX blocks in e8m0.

    If they are rounded `up`, no element exceeds the largest, and else none does the largest power
    of two by more than its half.
    """
    bits = blocks.abs().amax(-1).view(torch.int32)
    exponents, mantissas = bits >> 23, bits & 0x7FFFFF
    emax = (element.last >> element.mantissa_bits) - element.bias
    last = (element.last & ((1 << element.mantissa_bits) - 1)) << (23 - element.mantissa_bits)
    codes = exponents - emax + (mantissas > last if up else 0)
    # With a larger scale, the largest element would be infinite.
    codes = codes.clamp(0, 254 - emax)
    return torch.where(exponents == 255, 255, codes).to(torch.uint8)


@kernel
def powers_of_two(codes: Tensor) -> Tensor:
    """Return the float32 values of codes in e8m0: 2^(code - 127), and NaN for 255."""
    bits = codes.to(torch.int32) << 23
    bits = torch.where(codes == 0, 0x400000, torch.where(codes == 255, 0x7FC00000, bits))
    return bits.view(torch.float32)


@kernel
def block_scales(wanted: Tensor, of_tensors: Tensor) -> Tensor:
    """Return the scales of NVFP4 blocks in e4m3, in units of their tensors'."""
    shares = wanted / torch.where(of_tensors == 0, 1, of_tensors)
    return to_float_codes(shares, E4M3).to(torch.uint8)


@kernel
def element_codes(
    blocks: Tensor, scales: Tensor, element: FloatFormat, words: Tensor | None
) -> Tensor:
    """Return the codes, uint8, of values in blocks with these scales."""
    scaled = blocks / torch.where(scales == 0, 1, scales).unsqueeze(-1)
    return to_float_codes(scaled, element, words).to(torch.uint8)


@kernel
def element_values(codes: Tensor, scales: Tensor, element: FloatFormat) -> Tensor:
    return of_float_codes(codes.to(torch.int32), element) * scales.unsqueeze(-1)
