"""Quantizers that round each value to a level of its bucket: signs, even grids and tables."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import Self

from gcbench.core.codec import Message
from gcbench.core.codecs.levels import level_values, random_codes
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.one_pass import Kinds, Parameters
from gcbench.core.codecs.packing import width_of
from gcbench.core.codecs.radix import unpack_digits
from gcbench.core.codecs.scales import grid_codes, grid_values
from gcbench.core.fields import example
from gcbench.core.methods.bucketed import Bucketed


class Signs(Bucketed, ABC):
    """A codec of signs."""

    random: ClassVar[bool] = False

    @property
    def base(self) -> int:
        return 2

    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor:
        return (v >= 0).to(torch.int32)


@dataclass(frozen=True)
class LevelQuantizer(Bucketed, ABC):
    """A codec that rounds to one of `level_count` levels of a bucket."""

    level_count: Annotated[int, Field(ge=2, le=256), example(9)]
    """levels s in all; 2^K + 1 for orq [ORQ, section 3.1]"""

    @property
    def base(self) -> int:
        return self.level_count

    @property
    def analytic_bits_per_value(self) -> float:
        """Return the bits per value as counted by ORQ, without levels and scales."""
        return math.log2(self.level_count)


class GridQuantizer(Bucketed, ABC):
    """A codec with one scale per bucket: random rounding to even levels from -scale to scale.

    If all workers use the same scales, their codes can be added (`exchange=sum`).
    """

    @property
    @abstractmethod
    def highest(self) -> int:
        """Return the largest code; codes are 0 to `highest`, and `highest / 2` stands for zero."""

    @property
    def base(self) -> int:
        return self.highest + 1

    @abstractmethod
    def scale(self, v: Tensor) -> Tensor:
        """Return scales `[...]`, as `fit` does; `code` must clamp any larger magnitudes."""

    def fit(self, v: Tensor) -> Tensor:
        return self.scale(v).unsqueeze(-1)

    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor:
        assert words is not None
        return grid_codes(v, parameters[0], self.highest, words)

    @property
    def kinds(self) -> Kinds:
        return Kinds("given", "grid", "grid")

    def value(self, codes: Tensor, parameters: Parameters) -> Tensor:
        return grid_values(codes - self.highest / 2, parameters[0], self.highest)

    def codes_in(self, message: Message, segments: tuple[int, ...]) -> Tensor:
        return unpack_digits(message[0], sum(segments), self.base)

    def scales_of(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        return self.fit_buckets(x, segments).squeeze(-1)

    def codes_of(
        self, x: Tensor, segments: tuple[int, ...], scales: Tensor, noise: Noise
    ) -> Tensor:
        return self.codes_by(x, segments, scales.unsqueeze(-1), noise)

    def values_of(self, codes: Tensor, segments: tuple[int, ...], scales: Tensor) -> Tensor:
        spread = self.buckets(segments, codes.device).spread(scales)
        return grid_values(codes, spread, self.highest)


@dataclass(frozen=True)
class SignedGridQuantizer(GridQuantizer, ABC):
    """A grid of zero and `levels` levels on either side, in codes with a whole number of bits."""

    levels: Annotated[int, Field(ge=1, le=127), example(7)]
    """levels s above zero, 2^(bits-1) - 1; typed by itself it sets bits [QSGD, section 3.1]"""

    @property
    def highest(self) -> int:
        return 2 * self.levels

    @property
    def base(self) -> int:
        return 1 << self.width

    @property
    def width(self) -> int:
        """Return the bits of a code."""
        return width_of(self.highest + 1)

    def by_bits(self) -> dict[int, Self]:
        """Return this codec with every number of bits, and of as many levels as these allow."""
        others = {bits: replace(self, levels=(1 << bits - 1) - 1) for bits in range(2, 9)}
        return others | {self.width: self}

    def codes_for(self, n: int) -> int:
        return n

    @property
    def analytic_bits_per_value(self) -> float:
        """Return the bits of a code, without scales."""
        return self.width


@dataclass(frozen=True)
class TableQuantizer(LevelQuantizer, ABC):
    """A codec with a table of levels per bucket: random rounding to the two around a value.

    Levels are in ascending order, from the minimum to the maximum of the bucket.
    """

    kinds: ClassVar[Kinds] = Kinds("given", "table", "level")

    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor:
        assert words is not None
        return random_codes(v, parameters, words)

    def value(self, codes: Tensor, parameters: Parameters) -> Tensor:
        return level_values(codes, parameters)
