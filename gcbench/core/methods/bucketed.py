"""Codecs that fit parameters to each bucket, and code values with those of their bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from gcbench.core.codec import Codec, Message
from gcbench.core.codecs.buckets import Buckets, Where, buckets_of
from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.native import ADD, SUBTRACT, WRITE, is_native
from gcbench.core.codecs.noise import Draws, Noise
from gcbench.core.codecs.one_pass import Kinds, OnePass, Parameters, Residual
from gcbench.core.codecs.radix import (
    bytes_of_digits,
    join_digits,
    pack_digits,
    part_digits,
    unit_of,
    unpack_digits,
)
from gcbench.core.compressor import Given, Grads, Sizes, Step, flatten_each, sizes_of
from gcbench.core.fields import Checked, Count, Needs, example

CPU = torch.device("cpu")
# With at most this many parameters, a GPU thread computes all codes that share a word.
_FEW = 4
# How many messages are decoded in one pass over the mean: of few parameters, and of tables, which
# a compiler would unroll for minutes.
_TOGETHER, _TABLES_TOGETHER = 16, 4


@dataclass(frozen=True, kw_only=True)
class Bucketed(Checked, Codec, ABC):
    """A codec that fits parameters to each bucket and codes values with them.

    A subclass defines what is fitted (`fit`), and how values are coded and decoded with it (`code`,
    `value`).

    A message is the digits of all codes in the order of the values, and the parameters of all
    buckets.
    """

    bucket_size: Annotated[Count, example(512), Needs("per_layer", (False,))] = 2048
    """values that share a scale, and for eden are rotated together [QSGD, section 4]"""
    per_layer: bool = False
    """true: every tensor is one bucket, whatever its size"""
    random: ClassVar[bool] = True

    @property
    @abstractmethod
    def base(self) -> int:
        """Return the number of codes, which are 0 to base - 1."""

    @property
    def kinds(self) -> Kinds | None:
        """Return what native code does for `fit`, `code` and `value`; None: nothing."""
        return None

    @property
    def levels_of_all(self) -> Tensor | None:
        """Return what native code needs of levels that all buckets have; None: nothing."""
        return None

    @abstractmethod
    def fit(self, v: Tensor, d: Tensor | None = None) -> Tensor:
        """Return the k parameters `[..., k]` of buckets `[..., size]`.

        With d, `[buckets]`, only the first d values of each bucket count, and the others are 0.
        """

    @abstractmethod
    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor:
        """Return the code of each value, int32; `words` has a random word per value, or is None."""

    @abstractmethod
    def value(self, codes: Tensor, parameters: Parameters) -> Tensor:
        """Return the values that codes stand for, float32."""

    def sends(self, fitted: Tensor) -> Tensor:
        """Return the parameters to send: those that `value` needs."""
        return fitted

    def buckets(self, segments: tuple[int, ...], device: torch.device) -> Buckets:
        size = None if self.per_layer else self.bucket_size
        return buckets_of(segments, size, device)

    def shorter_than(self, size: int) -> bool:
        """Return whether all buckets have fewer than `size` values."""
        return self.bucket_size < size and not self.per_layer

    def fit_buckets(self, x: Tensor, segments: tuple[int, ...]) -> Tensor:
        """Return the parameters of all buckets, `[w, buckets, k]`."""
        return self._fit_each(x.split(segments, dim=1), self.buckets(segments, x.device))

    def _fit_each(self, tensors: Sequence[Tensor], buckets: Buckets) -> Tensor:
        native = self._native(tensors[0], buckets)
        if native and native.fits:
            return native.fit(tensors)
        return buckets.reduce(buckets.take(tensors), self.fit)

    def _native(self, x: Tensor, buckets: Buckets) -> OnePass | None:
        return _one_pass(self, buckets) if self.kinds and is_native(x) else None

    def codes_by(
        self, x: Tensor, segments: tuple[int, ...], fitted: Tensor, noise: Noise
    ) -> Tensor:
        """Return the codes `[w, n]`, uint8, of `x` with the buckets' parameters `fitted`."""
        buckets, tensors = self.buckets(segments, x.device), x.split(segments, dim=1)
        if native := self._native(x, buckets):
            return native.codes(tensors, fitted, noise)
        return self._codes(buckets.take(tensors), fitted, buckets, noise)

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        return self.encode_each(x.split(segments, dim=1), segments, noise)

    def encode_each(
        self, tensors: Sequence[Tensor], segments: tuple[int, ...], noise: Noise
    ) -> Message:
        buckets = self.buckets(segments, tensors[0].device)
        if native := self._native(tensors[0], buckets):
            return self._encode_native(native, buckets, tensors, noise)
        return self._encode_eager(buckets.take(tensors), buckets, noise)

    def encode_corrected(self, given: Given, noise: Noise) -> tuple[Message, Grads]:
        tensors = given.tensors
        buckets = self.buckets(given.segments, tensors[0].device)
        native = self._native(tensors[0], buckets)
        if not (native and native.fits):
            return super().encode_corrected(given, noise)
        left = given.room() if given.residual else []
        memory = Residual(given.before, left, given.alpha, given.keep) if left else None
        message = self._encode_native(native, buckets, tensors, noise, memory, given.clip)
        return message, given.named(left) if left else {}

    def native_for(self, x: Tensor, sizes: Sizes) -> bool:
        """Return whether native code fits and codes tensors of these sizes."""
        native = self._native(x, self.buckets(tuple(sizes.values()), x.device))
        return bool(native and native.fits)

    def encode_in_bytes(self, grads: Grads, residual: Residual, step: Step) -> Message:
        """Return the message for gradients and a residual in bytes, by native code."""
        sizes, tensors = sizes_of(grads), flatten_each(grads)
        buckets = self.buckets(tuple(sizes.values()), CPU)
        native, noise = self._native(tensors[0], buckets), step.noise("codec", sizes, CPU)
        assert native
        return self._encode_native(native, buckets, tensors, noise, residual)

    def _encode_native(
        self,
        native: OnePass,
        buckets: Buckets,
        tensors: Sequence[Tensor],
        noise: Noise,
        residual: Residual | None = None,
        clip: float = 0,
    ) -> Message:
        given = None if native.fits else self._fit_each(tensors, buckets)
        digits, fitted = native.encode(
            tensors, noise if self.random else None, given, residual, clip
        )
        return [digits, self.sends(fitted)]

    def _encode_eager(self, x: Tensor, buckets: Buckets, noise: Noise) -> Message:
        fitted = buckets.reduce(x, self.fit)
        if buckets.in_parts or fitted.shape[2] > _FEW:
            digits = pack_digits(self._codes(x, fitted, buckets, noise), self.base)
        else:
            ((_, where),) = buckets.parts(len(x))
            draws = noise.by_segment(buckets.segments) if self.random else None
            n = sum(buckets.segments)
            words = kernels_of(self).encode(x, fitted, where, draws, n)
            digits = bytes_of_digits(words, n, self.base)
        return [digits, self.sends(fitted)]

    def _codes(self, x: Tensor, fitted: Tensor, buckets: Buckets, noise: Noise) -> Tensor:
        codes = torch.empty(len(x), sum(buckets.segments), dtype=torch.uint8, device=x.device)
        for part, where in buckets.parts(len(x)):
            some = x[:, part] if buckets.in_parts else x
            draws = noise.of(part) if buckets.in_parts else noise.by_segment(buckets.segments)
            kernels_of(self).codes(
                some, fitted, where, draws if self.random else None, codes[:, part]
            )
        return codes

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        buckets = self.buckets(segments, out.device)
        if native := self._native(out, buckets):
            native.decode([part.unsqueeze(0) for part in message], out, ADD)
            return
        self._decode(kernels_of(self).add, message, buckets, out)

    def subtract_sent(self, x: Tensor, message: Message, segments: tuple[int, ...]) -> None:
        buckets = self.buckets(segments, x.device)
        if native := self._native(x, buckets):
            native.decode([part.unsqueeze(0) for part in message], x, SUBTRACT)
            return
        self._decode(kernels_of(self).subtract, message, buckets, x)

    def _decode(
        self, kernel: Callable[..., None], message: Message, buckets: Buckets, out: Tensor
    ) -> None:
        """Call a kernel with the codes of each part of a message, their parameters, and `out`."""
        digits, sent = message
        codes = unpack_digits(digits, out.shape[1], self.base) if buckets.in_parts else digits
        for part, where in buckets.parts(len(out)):
            some = codes[:, part] if buckets.in_parts else codes
            kernel(some, sent, where, buckets.in_parts, out[:, part])

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        digits, sent = messages
        workers, count = digits.shape[:2]
        buckets = self.buckets(segments, digits.device)
        out = torch.empty(count, sum(segments), dtype=torch.float32, device=digits.device)
        if native := self._native(out, buckets):
            native.decode(messages, out, WRITE)
            return out
        together = _TOGETHER if sent.shape[-1] <= _FEW else _TABLES_TOGETHER
        for first in range(0, workers, together):
            some = slice(first, first + together)
            end = first > 0, workers if some.stop >= workers else 1
            kernel = partial(kernels_of(self).mean, *end)
            each = [part[some].flatten(0, 1) for part in messages]
            self._decode(kernel, each, buckets, out)
        return out


class Method(Protocol):
    """The part of a method that kernels read; it can be a key of a dict."""

    @property
    def base(self) -> int: ...

    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor: ...

    def value(self, codes: Tensor, parameters: Parameters) -> Tensor: ...


class Kernels(NamedTuple):
    codes: Callable[..., None]
    encode: Callable[..., list[Tensor]]
    add: Callable[..., None]
    subtract: Callable[..., None]
    mean: Callable[..., None]


@lru_cache(maxsize=64)
def kernels_of(method: Method) -> Kernels:
    base = method.base

    def code(
        x: Tensor, fitted: Tensor, where: Where, draws: Draws | None, n: int, of: int
    ) -> Tensor:
        found = where.find(n, of)
        if found.in_copy is not None:
            x = x[:, found.in_copy]
        words = None
        if draws and found.tensors is not None and found.places is not None:
            elements = draws.first[:, found.tensors] + found.places
            words = Draws(elements.to(torch.int32), draws.keys).words()
        elif draws:
            words = draws.words(n)
        return method.code(x, _of_values(fitted, found.buckets), words)

    def value(codes: Tensor, sent: Tensor, where: Where, unpacked: bool, n: int) -> Tensor:
        digits = codes if unpacked else part_digits(codes, n, base)
        return method.value(digits.to(torch.int32), _of_values(sent, where.find(n, n).buckets))

    @kernel
    def codes(x: Tensor, fitted: Tensor, where: Where, draws: Draws | None, out: Tensor) -> None:
        out.copy_(code(x, fitted, where, draws, out.shape[1], out.shape[1]))

    @kernel
    def encode(
        x: Tensor, fitted: Tensor, where: Where, draws: Draws | None, n: int
    ) -> list[Tensor]:
        # Without a call that pads, whose result a compiler would store.
        whole = n + -n % unit_of(base)
        digits = code(x, fitted, where, draws, whole, n)
        return join_digits(torch.where(torch.arange(whole, device=x.device) < n, digits, 0), base)

    @kernel
    def add(codes: Tensor, sent: Tensor, where: Where, unpacked: bool, out: Tensor) -> None:
        out.add_(value(codes, sent, where, unpacked, out.shape[1]))

    @kernel
    def subtract(codes: Tensor, sent: Tensor, where: Where, unpacked: bool, out: Tensor) -> None:
        # Adding 0.0 turns -0 into 0, as where decoded values are added to zeros.
        out.sub_(value(codes, sent, where, unpacked, out.shape[1]) + 0.0)

    @kernel
    def mean(
        onto: bool,
        divisor: int,
        codes: Tensor,
        sent: Tensor,
        where: Where,
        unpacked: bool,
        out: Tensor,
    ) -> None:
        rows, n = out.shape
        first, *others = [
            value(*of_worker, where, unpacked, n)
            for of_worker in zip(codes.split(rows), sent.split(rows), strict=True)
        ]
        # Adding 0.0 turns -0 into 0, as in a sum that starts at zero.
        total = out + first if onto else first + 0.0
        for x in others:
            total = total + x
        out.copy_(total / divisor)

    return Kernels(codes, encode, add, subtract, mean)


def _of_values(of_buckets: Tensor, numbers: Tensor) -> Parameters:
    """Return the parameters `[w, n]` each of values in buckets of these numbers."""
    return [column.index_select(1, numbers) for column in of_buckets.unbind(2)]


@lru_cache(maxsize=64)
def _one_pass(method: Bucketed, buckets: Buckets) -> OnePass:
    assert method.kinds
    return OnePass(
        method.kinds, method.base, getattr(method, "highest", 0), method.levels_of_all, buckets
    )
