"""What a codec has to offer, in general and for each way in which its codes can travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gcbench.codecs.buckets import Buckets
from gcbench.codecs.noise import Noise
from gcbench.compressors.base import Properties

Message = list[Tensor]
"""The tensors that one `encode` sends, each `[w, ...]`."""


@runtime_checkable
class Codec(Protocol):
    """A pure code for rows of values; `segments` are the sizes of the tensors that a row holds."""

    @property
    def properties(self) -> Properties: ...

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        """Return the message of rows `[w, n]`, which hold the tensors end to end."""

    def encode_each(
        self, tensors: Sequence[Tensor], segments: tuple[int, ...], noise: Noise
    ) -> Message:
        """Return the message of tensors `[w, segment]`, which a codec may not need to copy."""
        x = torch.cat(list(tensors), dim=1) if len(tensors) > 1 else tensors[0]
        return self.encode(x, segments, noise)

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        """Add the values of a message of r rows to `out` `[r, n]`."""

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        """Return the mean `[r, n]` of W workers' messages `[W, r, ...]`.

        Values are added up in the order of the workers, from zero.
        """
        workers, rows = messages[0].shape[:2]
        total = torch.zeros(rows, sum(segments), device=messages[0].device)
        for k in range(workers):
            self.decode_add([m[k] for m in messages], segments, total)
        return total.div_(workers)


@runtime_checkable
class RaggedCodec(Codec, Protocol):
    """A codec whose messages differ in length with the codes in them."""

    def lengths_of(self, message: Message) -> list[Tensor | None]:
        """Return how many entries of each tensor count, by row, as `comm.gather` takes it."""


@runtime_checkable
class SparseCodec(Codec, Protocol):
    """A codec of some of the values, which it sends as they are."""

    def clear_sent(self, x: Tensor, message: Message, segments: tuple[int, ...]) -> None:
        """Set those values of `x` `[w, n]` to 0 that its message has."""


@runtime_checkable
class GridCodec(Codec, Protocol):
    """A codec whose codes are grid points, so that workers that share a grid can add them."""

    @property
    def highest(self) -> int:
        """Codes are 0 to `highest`; `highest / 2` stands for zero."""

    @property
    def bucket_size(self) -> int:
        """The number of values that share a scale."""

    def scales_of(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        """Return the buckets' scales `[w, buckets]`; any larger ones do as well."""

    def codes_of(
        self, x: Tensor, segments: tuple[int, ...], scales: Tensor, noise: Noise
    ) -> Tensor:
        """Return the codes `[w, n]`, uint8, on these scales."""

    def values_of(self, codes: Tensor, segments: tuple[int, ...], scales: Tensor) -> Tensor:
        """Return the values `[r, n]` of centered codes, or of sums of such.

        Centered codes are numbers from `-highest / 2` to `highest / 2`.
        """


@runtime_checkable
class TableCodec(Protocol):
    """A codec of uneven levels that can also use tables which other workers made."""

    @property
    def properties(self) -> Properties: ...

    @property
    def level_count(self) -> int:
        """Codes are 0 to `level_count - 1`."""

    def buckets(self, segments: tuple[int, ...], device: torch.device) -> Buckets: ...

    def fit_buckets(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        """Return the buckets' levels `[w, buckets, s]`.

        Any other levels between which all values of a bucket lie do as well.
        """

    def codes_by(
        self, x: Tensor, segments: tuple[int, ...], fitted: Tensor, noise: Noise
    ) -> Tensor:
        """Return the codes `[w, n]`, uint8, that the levels `fitted` give."""
