"""Codes on a grid, sent at a length that depends on what they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcbench.codecs.blocks import Blocks
from gcbench.codecs.elias import LONGEST_BLOCK
from gcbench.codecs.elias_dense import decode_dense, encode_dense
from gcbench.codecs.elias_sparse import decode_sparse, encode_sparse
from gcbench.codecs.entropy import decode_ans, encode_ans
from gcbench.codecs.noise import Noise
from gcbench.compressors.base import Properties
from gcbench.compressors.codec import Codec, GridCodec, Message
from gcbench.method_settings import Code


@dataclass(frozen=True)
class EntropyCoded(Codec, ABC):
    """A codec whose codes travel in a variable-length code; its scales stay float32."""

    codec: GridCodec
    analytic_bits_per_value: ClassVar[None] = None  # the codes decide

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

    def scales_of(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        return self.codec.scales_of(x, segments)

    def codes_of(
        self, x: Tensor, segments: tuple[int, ...], scales: Tensor, noise: Noise
    ) -> Tensor:
        return self.codec.codes_of(x, segments, scales, noise)

    def values_of(self, codes: Tensor, segments: tuple[int, ...], scales: Tensor) -> Tensor:
        return self.codec.values_of(codes, segments, scales)

    @abstractmethod
    def write(self, codes: Tensor, segments: tuple[int, ...]) -> Message:
        """Return all that is sent of codes `[w, n]`, uint8, with the tensors end to end."""

    @abstractmethod
    def read(self, written: Message, segments: tuple[int, ...]) -> Tensor:
        """Return the codes `[r, n]`, uint8, that were written: the inverse of `write`."""

    @abstractmethod
    def lengths_of(self, message: Message) -> list[Tensor | None]:
        """Return how many entries of each tensor count, by row, as `comm.gather` takes it."""


class Elias(EntropyCoded):
    """QSGD's codes, with integers in Elias's omega code.

    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    NeurIPS 2017, section 3.1 and theorem 3.2; the code of integers is Elias's omega.

    Sends per worker the codes' bits, rounded up to whole bytes once, and 16 bits a bucket with how
    many of them are its own.

    Differences from the paper: the lengths, which let all buckets be decoded at once. A bucket of
    more than 2048 values is coded in runs of 2048, each with a length of its own. The sparse code
    starts anew with each of them.
    """

    def blocks(self, segments: tuple[int, ...]) -> Blocks:
        return Blocks(segments, min(self.bucket_size, LONGEST_BLOCK))

    def lengths_of(self, message: Message) -> list[Tensor | None]:
        _, lengths, _ = message
        return [(lengths.sum(1) + 7) // 8, None, None]


class EliasDense(Elias):
    """The dense code: every value, for codes of which few are zero.

    Of a value it writes omega(k + 1) of the magnitude k, and the sign where k > 0 (corollary 3.3,
    for s of about sqrt(n) levels).

    Differences from the paper: its 2.8 n + 32 bits drop an o(1); with s = sqrt(n) the code has up
    to 4.1 n + 32.
    """

    def write(self, codes: Tensor, segments: tuple[int, ...]) -> Message:
        return list(encode_dense(codes, self.blocks(segments), self.highest // 2))

    def read(self, written: Message, segments: tuple[int, ...]) -> Tensor:
        streams, lengths = written
        return decode_dense(streams, lengths, self.blocks(segments), self.highest // 2)


class EliasSparse(Elias):
    """The sparse code: every value that is not zero, with its distance from the one before.

    Of such a value it writes omega of that distance, the sign, and omega of the magnitude k.

    At most (3 + 1.5 log2(2 (s^2 + n) / (s (s + sqrt n)))) s (s + sqrt n) bits on average for n
    values scaled by their 2-norm (theorem 3.2), lengths and scale apart.
    """

    def write(self, codes: Tensor, segments: tuple[int, ...]) -> Message:
        return list(encode_sparse(codes, self.blocks(segments), self.highest // 2))

    def read(self, written: Message, segments: tuple[int, ...]) -> Tensor:
        streams, lengths = written
        return decode_sparse(streams, lengths, self.blocks(segments), self.highest // 2)


class Ans(EntropyCoded):
    """Asymmetric numeral systems: an entropy code of all codes of a message.

    Wu et al., "Error Compensated Quantized SGD and its Applications to Large-scale Distributed
    Optimization", ICML 2018, section 3 proposes it: sum_k d_k log2(d / d_k) bits at best.

    Sends per worker the codes in 32-bit words, one more with their number, and 16 bits for each of
    the 2 s + 1 values that a code can take, with how frequent it is.

    Differences from the paper: asymmetric numeral systems instead of a Huffman code, which spends
    at least a bit on every value where ECQ-SGD's coarse levels need a third of one.
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


def apply_code(codec: Codec, code: Code) -> Codec:
    """Return `codec` with its codes sent in `code`; `fixed` leaves it as it is."""
    if code == "fixed":
        return codec
    if not isinstance(codec, GridCodec):
        raise ValueError(f"code={code} needs codes on a grid, as qsgd has them; type code=fixed")
    if codec.highest % 2:
        raise ValueError(
            f"code={code} needs a level at zero, so an odd number of levels, not "
            f"{codec.highest + 1}; type level_count={min(codec.highest + 2, 255)} or code=fixed"
        )
    return CODES[code](codec)
