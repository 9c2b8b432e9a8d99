"""The interfaces of codecs: the general one, and those that some exchanges need in addition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gcbench.core.codecs.buckets import Buckets
from gcbench.core.codecs.indices import sparse_mean
from gcbench.core.codecs.noise import Noise
from gcbench.core.compressor import Given, Grads, Properties

Message = list[Tensor]
"""The tensors that one `encode` sends, each `[w, ...]`."""


@runtime_checkable
class Codec(Protocol):
    """A stateless code for rows of values; `segments` are the sizes of the tensors in a row."""

    @property
    def properties(self) -> Properties: ...

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        """Return the message for rows `[w, n]` of concatenated tensors."""

    def drawing(self, noise: Noise) -> Codec:
        """Return the codec for decoding messages that were encoded with this noise.

        A codec whose decoder draws random numbers, too, overrides it: its messages need not have
        the seed. For `decode_mean` the noise has a row for each message, worker by worker.
        """
        return self

    def encode_each(
        self, tensors: Sequence[Tensor], segments: tuple[int, ...], noise: Noise
    ) -> Message:
        """Return the message for tensors `[w, segment]`; overriding it can save a copy."""
        x = torch.cat(list(tensors), dim=1) if len(tensors) > 1 else tensors[0]
        return self.encode(x, segments, noise)

    def encode_corrected(self, given: Given, noise: Noise) -> tuple[Message, Grads]:
        """Return the message for what is given, and the next residual.

        Overriding it can save passes over memory.
        """
        x, segments = given.flat(), given.segments
        message = self.encode(x, segments, noise)
        self.drawing(noise).subtract_sent(x, message, segments)
        return message, given.left_in(x)

    def subtract_sent(self, x: Tensor, message: Message, segments: tuple[int, ...]) -> None:
        """Subtract from `x` `[w, n]` what its message says; overriding it can save passes."""
        sent = torch.zeros_like(x)
        self.decode_add(message, segments, sent)
        x.sub_(sent)

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        """Add the decoded values of a message with r rows to `out` `[r, n]`."""

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        """Return the mean `[r, n]` of W workers' messages `[W, r, ...]`.

        Values are added in the order of the workers, starting from zero.
        """
        workers, rows = messages[0].shape[:2]
        device = messages[0].device
        total = torch.zeros(rows, sum(segments), dtype=torch.float32, device=device)
        for k in range(workers):
            self.decode_add([m[k] for m in messages], segments, total)
        return total.div_(workers)


def decoder_of(codec: Codec, noise: Callable[[], Noise]) -> Codec:
    """Return the codec for decoding, with the noise only if its decoder draws any."""
    return codec if type(codec).drawing is Codec.drawing else codec.drawing(noise())


class SparseCodec(Codec, Protocol):
    """A codec that sends values at some positions; the others are zero."""

    def values_at(self, message: Message, segments: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the positions in a row and the values of a message, both `[r, values]`."""

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        out.scatter_add_(1, *self.values_at(message, segments))

    def subtract_sent(self, x: Tensor, message: Message, segments: tuple[int, ...]) -> None:
        positions, values = self.values_at(message, segments)
        x.scatter_add_(1, positions, values.neg())

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        workers, rows = messages[0].shape[:2]
        positions, values = (
            part.unflatten(0, (workers, rows))
            for part in self.values_at([m.flatten(0, 1) for m in messages], segments)
        )
        return sparse_mean(positions, values, sum(segments))


@runtime_checkable
class RaggedCodec(Codec, Protocol):
    """A codec whose messages have lengths that depend on the codes."""

    def lengths_of(self, message: Message) -> list[Tensor | None]:
        """Return how many entries of each tensor are used, per row, as `comm.gather` takes it."""


@runtime_checkable
class GridCodec(Codec, Protocol):
    """A codec whose codes are grid points, which can be added if workers share a grid."""

    @property
    def highest(self) -> int:
        """Return the largest code; codes are 0 to `highest`, and `highest / 2` stands for zero."""

    @property
    def bucket_size(self) -> int:
        """The number of values that share a scale."""

    def buckets(self, segments: tuple[int, ...], device: torch.device) -> Buckets: ...

    def scales_of(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        """Return the buckets' scales `[w, buckets]`; `codes_of` also takes any larger ones."""

    def codes_of(
        self, x: Tensor, segments: tuple[int, ...], scales: Tensor, noise: Noise
    ) -> Tensor:
        """Return the codes `[w, n]`, uint8, of `x` with these scales."""

    def codes_in(self, message: Message, segments: tuple[int, ...]) -> Tensor:
        """Return the codes `[w, n]` of a message, in any order."""

    def values_of(self, codes: Tensor, segments: tuple[int, ...], scales: Tensor) -> Tensor:
        """Return the values `[r, n]` of centered codes, or of sums of centered codes.

        Centered codes are numbers from `-highest / 2` to `highest / 2`.
        """


@runtime_checkable
class TableCodec(Protocol):
    """A codec with unevenly spaced levels, which can also use tables from other workers."""

    @property
    def properties(self) -> Properties: ...

    @property
    def level_count(self) -> int:
        """Return the number of levels; codes are 0 to `level_count - 1`."""

    def buckets(self, segments: tuple[int, ...], device: torch.device) -> Buckets: ...

    def fit_buckets(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        """Return the buckets' levels `[w, buckets, s]`.

        `codes_by` also takes any other levels whose range includes all values of a bucket.
        """

    def codes_by(
        self, x: Tensor, segments: tuple[int, ...], fitted: Tensor, noise: Noise
    ) -> Tensor:
        """Return the codes `[w, n]`, uint8, of `x` with the levels `fitted`."""
