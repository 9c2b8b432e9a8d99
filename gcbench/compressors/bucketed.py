"""The settings of codes that work bucket by bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gcbench.codecs.buckets import Buckets, buckets_of
from gcbench.codecs.levels import add_levels, random_codes
from gcbench.codecs.noise import Noise
from gcbench.codecs.radix import pack_digits, unpack_digits
from gcbench.compressors.exchange import Message


@dataclass(frozen=True, kw_only=True)
class Bucketed:
    bucket_size: int = 2048  # D, values that share their levels
    per_layer: bool = False  # a bucket is a tensor, however large

    def __post_init__(self) -> None:
        if self.bucket_size < 1:
            raise ValueError(f"bucket_size={self.bucket_size}: type a number of values of at least 1, as in bucket_size=2048")

    def buckets(self, segments: tuple[int, ...], device: torch.device) -> Buckets:
        return buckets_of(segments, max(segments) if self.per_layer else self.bucket_size, device)

    def shorter_than(self, size: int) -> bool:
        """Whether no bucket holds `size` values."""
        return self.bucket_size < size and not self.per_layer


@dataclass(frozen=True)
class Levelled(Bucketed):
    level_count: int  # s, levels in all

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.level_count <= 256:
            raise ValueError(f"level_count={self.level_count}: a code holds 2 to 256 levels; type level_count=5")


@dataclass(frozen=True)
class Tabled(Levelled, ABC):
    """Codes that send a table of levels with every bucket, and round at random to the two levels around each value."""

    @abstractmethod
    def search(self, v: Tensor) -> Tensor:
        """`[..., d]` buckets to `[..., s]` rising levels, from the minimum to the maximum."""

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        buckets = self.buckets(segments, x.device)
        tables = buckets.reduce(x, self.search)
        return [pack_digits(random_codes(x, tables, buckets, noise), self.level_count), tables]

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        packed, tables = message
        codes = unpack_digits(packed, out.shape[1], self.level_count)
        add_levels(codes, tables, self.buckets(segments, out.device), out)
