"""Entropy codes: of the codes of a grid, and of the exponents of floats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gcbench.core.codec import Codec, GridCodec, Message
from gcbench.core.codecs.buckets import Buckets
from gcbench.core.codecs.elias import LONGEST_BLOCK, Blocks
from gcbench.core.codecs.elias_codes import decode_dense, decode_sparse, encode_dense, encode_sparse
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.packing import decode_ans, encode_ans
from gcbench.core.compressor import Properties
from gcbench.core.fields import Checked


@dataclass(frozen=True)
class EntropyCoded(Codec, ABC):
    """A codec whose codes are sent in a variable-length code, and its scales in float32."""

    codec: GridCodec
    analytic_bits_per_value: ClassVar[None] = None  # the bits depend on the codes

    @property
    def properties(self) -> Properties:
        return self.codec.properties

    @property
    def highest(self) -> int:
        return self.codec.highest

    @property
    def bucket_size(self) -> int:
        return self.codec.bucket_size

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        scales = self.scales_of(x, segments)
        return [*self.write(self.codes_of(x, segments, scales, noise), segments), scales]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        *written, scales = message
        centered = self.read(written, segments).sub_(self.highest // 2).view(torch.int8)
        out += self.values_of(centered, segments, scales)

    def buckets(self, segments: tuple[int, ...], device: torch.device) -> Buckets:
        return self.codec.buckets(segments, device)

    def scales_of(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        return self.codec.scales_of(x, segments)

    def codes_of(
        self, x: Tensor, segments: tuple[int, ...], scales: Tensor, noise: Noise
    ) -> Tensor:
        return self.codec.codes_of(x, segments, scales, noise)

    def codes_in(self, message: Message, segments: tuple[int, ...]) -> Tensor:
        return self.read(message[:-1], segments)

    def values_of(self, codes: Tensor, segments: tuple[int, ...], scales: Tensor) -> Tensor:
        return self.codec.values_of(codes, segments, scales)

    @abstractmethod
    def write(self, codes: Tensor, segments: tuple[int, ...]) -> Message:
        """Return the message for the codes `[w, n]`, uint8, of concatenated tensors."""

    @abstractmethod
    def read(self, written: Message, segments: tuple[int, ...]) -> Tensor:
        """Return the codes `[r, n]`, uint8, that were written: the inverse of `write`."""

    @abstractmethod
    def lengths_of(self, message: Message) -> list[Tensor | None]:
        """Return how many entries of each tensor are used, per row, as `comm.gather` takes it."""


class Elias(EntropyCoded):
    """QSGD's codes, with integers written in Elias's omega code.

    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    NeurIPS 2017, section 3.1 and theorem 3.2.

    A worker sends the bits of all codes, rounded up once to whole bytes, and 16 bits per block
    with the length of its part. A block is a bucket or, if buckets have more than 2048 values, a
    run of 2048 values of a tensor.

    Differences from the paper: the lengths, which allow all blocks to be decoded in parallel; the
    sparse code restarts with each block.
    """

    def blocks(self, segments: tuple[int, ...]) -> Blocks:
        return Blocks(segments, min(self.bucket_size, LONGEST_BLOCK))

    def lengths_of(self, message: Message) -> list[Tensor | None]:
        _, lengths, _ = message
        return [(lengths.sum(1) + 7) // 8, None, None]


class EliasDense(Elias):
    """The dense code, which has every value: for codes of which few are zero.

    For a value of magnitude k it writes omega(k + 1), and the sign if k > 0 (corollary 3.3, for s
    of about sqrt(n) levels).

    Differences from the paper: its 2.8 n + 32 bits leave out an o(1) term; with s = sqrt(n) the
    code takes up to 4.1 n + 32 bits.
    """

    def write(self, codes: Tensor, segments: tuple[int, ...]) -> Message:
        return list(encode_dense(codes, self.blocks(segments), self.highest // 2))

    def read(self, written: Message, segments: tuple[int, ...]) -> Tensor:
        streams, lengths = written
        return decode_dense(streams, lengths, self.blocks(segments), self.highest // 2)


class EliasSparse(Elias):
    """The sparse code, which has every nonzero value, and its distance from the one before.

    For such a value it writes omega of the distance, the sign, and omega of the magnitude k.

    At most (3 + 1.5 log2(2 (s^2 + n) / (s (s + sqrt n)))) s (s + sqrt n) bits on average for n
    values scaled by their 2-norm (theorem 3.2), without lengths and scale.
    """

    def write(self, codes: Tensor, segments: tuple[int, ...]) -> Message:
        return list(encode_sparse(codes, self.blocks(segments), self.highest // 2))

    def read(self, written: Message, segments: tuple[int, ...]) -> Tensor:
        streams, lengths = written
        return decode_sparse(streams, lengths, self.blocks(segments), self.highest // 2)


class Ans(EntropyCoded):
    """Asymmetric numeral systems: an entropy code for all codes of a message.

    Wu et al., "Error Compensated Quantized SGD and its Applications to Large-scale Distributed
    Optimization", ICML 2018, section 3 proposes an entropy code: at best sum_k d_k log2(d / d_k)
    bits, if d_k of the d values have code k.

    A worker sends the codes in 32-bit words, one more word with their number, and 16 bits for the
    frequency of each of the 2 s + 1 codes.

    Differences from the paper: asymmetric numeral systems instead of a Huffman code, which takes at
    least one bit per value where ECQ-SGD's coarse levels need a third of a bit.
    """

    def write(self, codes: Tensor, segments: tuple[int, ...]) -> Message:
        return list(encode_ans(codes, self.highest + 1))

    def read(self, written: Message, segments: tuple[int, ...]) -> Tensor:
        words, weights = written
        return decode_ans(words, weights, sum(segments))

    def lengths_of(self, message: Message) -> list[Tensor | None]:
        words, _, _ = message
        return [words[:, 0] + 1, None, None]


CODES: dict[str, type[EntropyCoded]] = {
    "elias_dense": EliasDense,
    "elias_sparse": EliasSparse,
    "ans": Ans,
}


def apply_code(codec: Codec, code: str) -> Codec:
    """Return `codec` with its codes sent in `code`; `fixed` returns it unchanged.

    Raises ValueError for a codec whose codes are not on a grid with a level at zero.
    """
    if code == "fixed":
        return codec
    if not isinstance(codec, GridCodec):
        raise ValueError(
            f"code={code} needs codes on a grid, such as those of qsgd; type code=fixed"
        )
    if codec.highest % 2:
        raise ValueError(
            f"code={code} needs a level at zero, so an odd number of levels, not "
            f"{codec.highest + 1}; type level_count={min(codec.highest + 2, 255)} or code=fixed"
        )
    return CODES[code](codec)


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
