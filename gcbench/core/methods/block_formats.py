"""Floats of 8, 6 and 4 bits in blocks that share a scale: FP8, MXFP8, MXFP6, MXFP4 and NVFP4."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from gcbench.core.codec import Codec, Message
from gcbench.core.codecs.blocks import (
    E4M3,
    block_scales,
    count_blocks,
    element_codes,
    element_values,
    in_blocks,
    largest_of,
    of_blocks,
    powers_of_two,
    shared_exponents,
)
from gcbench.core.codecs.floats import FORMATS, FloatFormat, of_float_codes
from gcbench.core.codecs.kernels import block_slices
from gcbench.core.codecs.native import (
    ADD,
    SUBTRACT,
    WRITE,
    address,
    addresses,
    is_native,
    load_native,
)
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.packing import pack, unpack
from gcbench.core.compressor import Given, Grads, Properties
from gcbench.core.fields import Checked, Count, Neutral

Scale = Literal["float32", "power_up", "power_down", "of_tensor"]  # as in blocks.cpp


@dataclass(frozen=True, kw_only=True)
class BlockFormat(Checked, Codec, ABC):
    """A codec of floats of few bits, with one scale per block.

    For a block v of a tensor with scale X, sends element codes c_i of v_i / X, so that C(v_i) = X
    value(c_i), and X. Elements are rounded to the nearest, ties to even, or with
    `rounding=stochastic` up or down by chance. Those above the largest become the largest.

    A NaN or an infinity makes its block not finite, and in NVFP4 its tensor.
    """

    format: str  # of an element
    rounding: Annotated[Literal["nearest", "stochastic"], Neutral("nearest")] = "nearest"
    """how values are rounded to a float format: to the nearest value, or up or down by chance, so
    that the mean is right"""

    @property
    def element(self) -> FloatFormat:
        return FORMATS[self.format]

    @property
    @abstractmethod
    def block_size(self) -> int:
        """The number of values that share a scale."""

    @property
    def properties(self) -> Properties:
        return Properties(unbiased=self.rounding == "stochastic", contractive=True)

    @property
    @abstractmethod
    def scale(self) -> Scale:
        """The kind of a block's scale."""

    @abstractmethod
    def fit(self, blocks: Tensor, segments: tuple[int, ...]) -> Message:
        """Return what is sent of the scales: first that of every block `[w, blocks]`."""

    @abstractmethod
    def scales_of(self, fitted: Message, segments: tuple[int, ...]) -> Tensor:
        """Return the scales `[r, blocks]`, float32, that were sent."""

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        return self.encode_each(x.split(segments, dim=1), segments, noise)

    def encode_each(
        self, tensors: Sequence[Tensor], segments: tuple[int, ...], noise: Noise
    ) -> Message:
        if is_native(tensors[0]):
            return self._encode_native(tensors, segments, noise)
        blocks, words = in_blocks(tensors, self.block_size), None
        if self.rounding == "stochastic":
            of_values = noise.of().words(sum(segments))
            words = in_blocks(of_values.split(segments, dim=1), self.block_size)
        fitted = self.fit(blocks, segments)
        scales = self.scales_of(fitted, segments)
        codes = torch.empty(blocks.shape, dtype=torch.uint8, device=blocks.device)
        for part in self._slices(blocks):
            drawn = None if words is None else words[:, part]
            codes[:, part] = element_codes(blocks[:, part], scales[:, part], self.element, drawn)
        parts = of_blocks(codes, segments)
        flat = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0].contiguous()
        return [pack(flat, self.element.bits), *fitted]

    def encode_corrected(self, given: Given, noise: Noise) -> tuple[Message, Grads]:
        if given.keep or not is_native(given.tensors[0]):
            return super().encode_corrected(given, noise)
        left = given.room()
        places = given.before, left, given.alpha
        message = self._encode_native(given.tensors, given.segments, noise, *places)
        return message, given.named(left)

    def subtract_sent(self, x: Tensor, message: Message, segments: tuple[int, ...]) -> None:
        if not is_native(x):
            return super().subtract_sent(x, message, segments)
        self._decode_native(message, segments, x, SUBTRACT)

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        workers, rows = messages[0].shape[:2]
        out = messages[0].new_empty(rows, sum(segments), dtype=torch.float32)
        if not is_native(out):
            return super().decode_mean(messages, segments)
        for k in range(workers):
            self._decode_native([m[k] for m in messages], segments, out, ADD if k else WRITE)
        return out.div_(workers) if workers > 1 else out

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        if is_native(out):
            return self._decode_native(message, segments, out, ADD)
        packed, *fitted = message
        codes = unpack(packed, out.shape[1], self.element.bits)
        blocks = in_blocks(codes.split(segments, dim=1), self.block_size)
        values = torch.empty(blocks.shape, dtype=torch.float32, device=blocks.device)
        scales = self.scales_of(fitted, segments)
        for part in self._slices(blocks):
            values[:, part] = element_values(blocks[:, part], scales[:, part], self.element)
        parts = of_blocks(values, segments)
        torch._foreach_add_(list(out.split(segments, dim=1)), parts)

    def _slices(self, blocks: Tensor) -> Iterator[slice]:
        return block_slices(blocks.shape[1], len(blocks) * self.block_size, blocks.device)

    def _encode_native(
        self,
        tensors: Sequence[Tensor],
        segments: tuple[int, ...],
        noise: Noise,
        residual: Sequence[Tensor] | None = None,
        left: Sequence[Tensor] | None = None,
        alpha: float = 1,
    ) -> Message:
        rows, blocks = len(tensors[0]), sum(count_blocks(segments, self.block_size))
        codes = torch.empty(rows, sum(segments), dtype=torch.uint8)
        fitted = [torch.empty(rows, blocks, dtype=self._code_of_scale)]
        if self.scale == "of_tensor":
            fitted.append(torch.empty(rows, len(segments), dtype=torch.float32))
        starts = noise.starts(segments)
        is_random, layout = self.rounding == "stochastic", self._layout(segments)
        for k in range(rows):
            places = [
                addresses(part and [x[k : k + 1] for x in part], 1, segments)
                for part in (tensors, residual, left)
            ]
            load_native().blocks_encode(
                *(*places, alpha, *layout),
                *(self.element.last, address(starts[k], torch.int32, len(segments))),
                address(noise.keys[k], torch.int32, 2) if is_random else None,
                *(
                    address(codes[k], torch.uint8, sum(segments)),
                    *self._places(fitted, k, segments),
                ),
                torch.get_num_threads(),
            )
        return [pack(codes, self.element.bits), *fitted]

    def _decode_native(
        self, message: Message, segments: tuple[int, ...], out: Tensor, into: int
    ) -> None:
        packed, *fitted = [part.contiguous() for part in message]
        codes = unpack(packed, out.shape[1], self.element.bits).contiguous()
        layout = self._layout(segments)
        for k, row in enumerate(out):
            load_native().blocks_decode(
                *(address(codes[k], torch.uint8, sum(segments)), *layout),
                *(*self._places(fitted, k, segments), address(row, torch.float32, sum(segments))),
                *(into, torch.get_num_threads()),
            )

    @property
    def _code_of_scale(self) -> torch.dtype:
        return torch.float32 if self.scale == "float32" else torch.uint8

    def _places(
        self, fitted: Message, row: int, segments: tuple[int, ...]
    ) -> tuple[int | None, int | None]:
        """Return where a row's scales of blocks, and those of tensors if any, lie."""
        scales, *of_tensors = (part[row] for part in fitted)
        blocks = sum(count_blocks(segments, self.block_size))
        return (
            address(scales, self._code_of_scale, blocks),
            address(next(iter(of_tensors), None), torch.float32, len(segments)),
        )

    def _layout(self, segments: tuple[int, ...]) -> tuple[Any, ...]:
        """Return the tensors, the blocks and the format, as native code takes them."""
        form = self.element
        sizes = (c_int64 * len(segments))(*segments)
        kind = get_args(Scale).index(self.scale)
        return len(segments), sizes, self.block_size, kind, form.exponent_bits, form.mantissa_bits


@dataclass(frozen=True, kw_only=True)
class FP8(BlockFormat):
    """FP8 with a float32 scale per bucket, as the rows of torchft's quantized collectives have.

    Micikevicius et al., "FP8 Formats for Deep Learning", 2022 (arXiv 2209.05433): e4m3, up to 448
    without infinities, or e5m2, up to 57344.

        X = max|v_i| / largest

    so that E[C(v)] = v with stochastic rounding. Sends 8 bits per value and 32 per bucket.

    Differences from torchft's: a bucket lies in one tensor, whatever its shape.
    """

    format: Literal["e4m3", "e5m2"] = "e4m3"
    """bits of exponent and mantissa of a float of 8 bits [OCP MX, section 5.3]"""
    bucket_size: Count = 4096
    scale: ClassVar[Scale] = "float32"

    @property
    def block_size(self) -> int:
        return self.bucket_size

    def fit(self, blocks: Tensor, segments: tuple[int, ...]) -> Message:
        return [largest_of(blocks) / self.element.largest]

    def scales_of(self, fitted: Message, segments: tuple[int, ...]) -> Tensor:
        return fitted[0]


@dataclass(frozen=True, kw_only=True)
class Microscaling(BlockFormat, ABC):
    """An MX format: blocks of 32 elements with a power of two, e8m0, as their scale.

    Rouhani et al., "OCP Microscaling Formats (MX) Specification", version 1.0, 2023, section 5, and
    "Microscaling Data Formats for Deep Learning", 2023 (arXiv 2310.10537), section 3:

        X = 2^floor(log2 max|v_i|) / 2^emax       elements in e2m1 or e2m3, to the nearest
        X = 2^ceil(log2(max|v_i| / largest))      all others

    between 2^-127 and 2^127. The first is the papers' conversion (algorithm 1), which cuts off what
    is then above the largest. With the second, that of Mishra et al., "Recipes for Pre-training
    LLMs with MXFP8", 2025 (arXiv 2506.08027), section 3, no element exceeds it, so that E[C(v)] = v
    with stochastic rounding.

    Differences from the papers: the second X, where it is the better one. Squared errors of the
    first over the second, to the nearest, of normal, Laplace's and Student's values (t_3):

        e4m3 1.23 1.41 1.56    e5m2 and e3m2 1.05 1.08 1.11
        e2m3 1.00 0.99 0.97    e2m1 0.99 0.92 0.87
    """

    block_size: ClassVar[int] = 32

    @property
    def scale(self) -> Scale:
        cuts = self.rounding == "nearest" and self.format in ("e2m1", "e2m3")
        return "power_down" if cuts else "power_up"

    def fit(self, blocks: Tensor, segments: tuple[int, ...]) -> Message:
        return [shared_exponents(blocks, self.element, self.scale == "power_up")]

    def scales_of(self, fitted: Message, segments: tuple[int, ...]) -> Tensor:
        return powers_of_two(fitted[0])


@dataclass(frozen=True, kw_only=True)
class MXFP8(Microscaling):
    """MXFP8 (see `Microscaling`): elements in e4m3 or e5m2.

    Sends 8 bits per value, and 8 per 32 values.
    """

    format: Literal["e4m3", "e5m2"] = "e4m3"


@dataclass(frozen=True, kw_only=True)
class MXFP6(Microscaling):
    """MXFP6 (see `Microscaling`): elements in e2m3, up to 7.5, or in e3m2, up to 28.

    Sends 6 bits per value, and 8 per 32 values.
    """

    format: Literal["e2m3", "e3m2"] = "e2m3"
    """bits of exponent and mantissa of a float of 6 bits"""


@dataclass(frozen=True, kw_only=True)
class MXFP4(Microscaling):
    """MXFP4 (see `Microscaling`): elements in e2m1, which are 0, 0.5, 1, 1.5, 2, 3, 4 and 6.

    Sends 4 bits per value, and 8 per 32 values.
    """

    format: Literal["e2m1"] = "e2m1"


@dataclass(frozen=True, kw_only=True)
class NVFP4(BlockFormat):
    """NVFP4: elements in e2m1, blocks of 16 with a scale in e4m3, and one more scale per tensor.

    Alvarez et al., "Introducing NVFP4 for Efficient and Accurate Low-Precision Inference", NVIDIA,
    2025, and NVIDIA, "Pretraining Large Language Models with NVFP4", 2025 (arXiv 2509.25149),
    appendix B. For a block v of the tensor t:

        S = max|t_j| / (6 * 448), float32;   s = e4m3(max|v_i| / 6 / S);   X = s S

    Where s is rounded down, by up to a 16th, the largest elements are cut off to 6; so the mean of
    stochastic rounding is not quite right.

    Sends 4 bits per value, 8 per 16 values and 32 per tensor. Differences from the paper's recipe:
    weights have blocks of 16 x 16 there, and gradients of weights a Hadamard transform before.
    """

    format: Literal["e2m1"] = "e2m1"
    block_size: ClassVar[int] = 16
    scale: ClassVar[Scale] = "of_tensor"

    def fit(self, blocks: Tensor, segments: tuple[int, ...]) -> Message:
        largest = largest_of(blocks)
        owners = self._owners(segments, blocks.device).expand(len(blocks), -1)
        of_tensors = largest.new_zeros(len(blocks), len(segments))
        of_tensors.scatter_reduce_(1, owners, largest, "amax")
        of_tensors /= self.element.largest * E4M3.largest
        of_blocks_ = of_tensors.gather(1, owners)
        return [block_scales(largest / self.element.largest, of_blocks_), of_tensors]

    @property
    def properties(self) -> Properties:
        return super().properties._replace(unbiased=False)

    def scales_of(self, fitted: Message, segments: tuple[int, ...]) -> Tensor:
        codes, of_tensors = fitted
        owners = self._owners(segments, codes.device).expand(len(codes), -1)
        return of_float_codes(codes.to(torch.int32), E4M3) * of_tensors.gather(1, owners)

    def _owners(self, segments: tuple[int, ...], device: torch.device) -> Tensor:
        """Return the tensor of every block, `[1, blocks]`."""
        return _owners(segments, self.block_size, device)


@lru_cache(maxsize=8)
def _owners(segments: tuple[int, ...], size: int, device: torch.device) -> Tensor:
    counts = count_blocks(segments, size)
    each = torch.arange(len(segments)).repeat_interleave(
        torch.tensor(counts), output_size=sum(counts)
    )
    return each.unsqueeze(0).to(device)
