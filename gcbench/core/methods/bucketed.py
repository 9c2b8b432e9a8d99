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
from gcbench.core.codecs.buckets import Buckets, buckets_of
from gcbench.core.codecs.fused import Fused
from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.launches import is_fused
from gcbench.core.codecs.native import ADD, SUBTRACT, WRITE, is_native
from gcbench.core.codecs.noise import Draws, Noise
from gcbench.core.codecs.one_pass import Kinds, OnePass, Parameters, Residual
from gcbench.core.codecs.radix import pack_digits, unpack_digits
from gcbench.core.compressor import Given, Grads, Sizes, Step, flatten_each, sizes_of
from gcbench.core.fields import Checked, Count, Needs, example

CPU = torch.device("cpu")
_TOGETHER = 4  # how many messages are decoded in one pass over the mean


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
    def levels_of_all(self) -> Sequence[float] | None:
        """Return what native code needs of levels that all buckets have; None: nothing."""
        return None

    @abstractmethod
    def fit(self, v: Tensor) -> Tensor:
        """Return the k parameters `[..., k]` of buckets `[..., size]`."""

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
        return buckets.reduce(tensors, self.fit)

    def _native(self, x: Tensor, buckets: Buckets) -> OnePass | Fused | None:
        if self.kinds and is_native(x):
            return _one_pass(self, buckets)
        return fused_of(self, buckets) if self.kinds and is_fused(x) else None

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
        fitted = buckets.reduce(tensors, self.fit)
        codes = self._codes(buckets.take(tensors), fitted, buckets, noise)
        return [pack_digits(codes, self.base), self.sends(fitted)]

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
        """Return whether native code of CPUs fits and codes tensors of these sizes."""
        native = self._native(x, self.buckets(tuple(sizes.values()), x.device))
        return isinstance(native, OnePass) and native.fits

    def encode_in_bytes(self, grads: Grads, residual: Residual, step: Step) -> Message:
        """Return the message for gradients and a residual in bytes, by native code."""
        sizes, tensors = sizes_of(grads), flatten_each(grads)
        buckets = self.buckets(tuple(sizes.values()), CPU)
        native, noise = self._native(tensors[0], buckets), step.noise("codec", sizes, CPU)
        assert native
        return self._encode_native(native, buckets, tensors, noise, residual)

    def _encode_native(
        self,
        native: OnePass | Fused,
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

    def _codes(self, x: Tensor, fitted: Tensor, buckets: Buckets, noise: Noise) -> Tensor:
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        for part, numbers in buckets.parts(len(x)):
            draws = noise.of(part) if self.random else None
            kernels_of(self).codes(x[:, part], fitted, numbers, draws, codes[:, part])
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
        codes = unpack_digits(digits, out.shape[1], self.base)
        for part, numbers in buckets.parts(len(out)):
            kernel(codes[:, part], sent, numbers, out[:, part])

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        digits = messages[0]
        workers, count = digits.shape[:2]
        buckets = self.buckets(segments, digits.device)
        out = torch.empty(count, sum(segments), dtype=torch.float32, device=digits.device)
        if native := self._native(out, buckets):
            native.decode(messages, out, WRITE)
            return out
        for first in range(0, workers, _TOGETHER):
            some = slice(first, first + _TOGETHER)
            end = first > 0, workers if some.stop >= workers else 1
            kernel = partial(kernels_of(self).mean, *end)
            each = [part[some].flatten(0, 1) for part in messages]
            self._decode(kernel, each, buckets, out)
        return out


class Method(Protocol):
    """The part of a method that kernels read; it can be a key of a dict."""

    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor: ...

    def value(self, codes: Tensor, parameters: Parameters) -> Tensor: ...


class Kernels(NamedTuple):
    codes: Callable[..., None]
    add: Callable[..., None]
    subtract: Callable[..., None]
    mean: Callable[..., None]


@lru_cache(maxsize=64)
def kernels_of(method: Method) -> Kernels:
    """Return kernels of values in buckets of given numbers, `[n]`."""

    def value(codes: Tensor, sent: Tensor, numbers: Tensor) -> Tensor:
        return method.value(codes.to(torch.int32), _of_values(sent, numbers))

    @kernel
    def codes(x: Tensor, fitted: Tensor, numbers: Tensor, draws: Draws | None, out: Tensor) -> None:
        words = draws.words(x.shape[1]) if draws else None
        out.copy_(method.code(x, _of_values(fitted, numbers), words))

    @kernel
    def add(codes: Tensor, sent: Tensor, numbers: Tensor, out: Tensor) -> None:
        out.add_(value(codes, sent, numbers))

    @kernel
    def subtract(codes: Tensor, sent: Tensor, numbers: Tensor, out: Tensor) -> None:
        # Adding 0.0 turns -0 into 0, as where decoded values are added to zeros.
        out.sub_(value(codes, sent, numbers) + 0.0)

    @kernel
    def mean(
        onto: bool, divisor: int, codes: Tensor, sent: Tensor, numbers: Tensor, out: Tensor
    ) -> None:
        rows = len(out)
        first, *others = [
            value(*of_worker, numbers)
            for of_worker in zip(codes.split(rows), sent.split(rows), strict=True)
        ]
        # Adding 0.0 turns -0 into 0, as in a sum that starts at zero.
        total = out + first if onto else first + 0.0
        for x in others:
            total = total + x
        out.copy_(total / divisor)

    return Kernels(codes, add, subtract, mean)


def _of_values(of_buckets: Tensor, numbers: Tensor) -> Parameters:
    """Return the parameters `[w, n]` each of values in buckets of these numbers."""
    return [column.index_select(1, numbers) for column in of_buckets.unbind(2)]


@lru_cache(maxsize=64)
def _one_pass(method: Bucketed, buckets: Buckets) -> OnePass:
    return OnePass(*_job_of(method), buckets)


@lru_cache(maxsize=64)
def fused_of(method: Bucketed, buckets: Buckets, rotates: bool = False) -> Fused:
    return Fused(*_job_of(method), buckets, rotates)


def _job_of(method: Bucketed) -> tuple[Kinds, int, int, Sequence[float] | None]:
    assert method.kinds
    return method.kinds, method.base, getattr(method, "highest", 0), method.levels_of_all
