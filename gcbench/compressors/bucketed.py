"""The settings of codes that work bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gcbench.codecs.buckets import Buckets, buckets_of


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


def check_level_count(count: int) -> None:
    if not 2 <= count <= 256:
        raise ValueError(f"level_count={count}: a code holds 2 to 256 levels; type level_count=5")
