"""Codecs that fit parameters to each bucket, and code values with those of their bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gcbench.core.codec import Codec, Message, add_kept, flatten_sum
from gcbench.core.codecs.buckets import Buckets, Groups, Rows, buckets_of
from gcbench.core.codecs.kernels import block_slices
from gcbench.core.codecs.native import is_native
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.one_pass import Kinds, OnePass, Parameters, Residual, kernels_of
from gcbench.core.codecs.radix import pack_digits, rows_of, unpack_digits, words_of
from gcbench.core.compressor import Sizes, Step
from gcbench.core.fields import Checked, Count, example
from gcbench.core.marks import Needs

CPU = torch.device("cpu")
# With at most this many parameters, the codes of all rows of a group are computed at once in the
# registers of a CPU core, or of a GPU thread if a group has at most _FEW_ROWS rows.
_FEW = 4
_FEW_ROWS = 64
# How many messages are decoded in one pass over the mean: of few parameters, and of tables, which
# a compiler would unroll for minutes.
_TOGETHER, _TABLES_TOGETHER = 16, 4


@dataclass(frozen=True, kw_only=True)
class Bucketed(Checked, Codec, ABC):
    """A codec that fits parameters to each bucket and codes values with them.

    A subclass defines what is fitted (`fit`), and how values are coded and decoded with it (`code`,
    `value`).

    Groups of full rows are coded and decoded by one kernel each, as 32-bit words. The rest, which
    are rows that do not fill a group and the tails of tensors, is packed as digits.
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
        return buckets_of(segments, size, rows_of(self.base), device)

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
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        if native := self._native(x, buckets):
            native.write_codes(tensors, fitted, noise, codes.split(segments, dim=1))
            return codes
        rows = buckets.take(tensors)
        out = buckets.make_room(codes.split(segments, dim=1))
        table, draws = _of_rows(fitted, buckets.groups), noise.at(buckets.groups.starts)
        for (part, matrix), (_, room) in zip(_blocks(rows), _blocks(out), strict=True):
            kernels_of(self).codes(matrix, table[:, part], draws.of(part), room)
        out.rest.copy_(self._rest_codes(rows.rest, fitted, buckets.groups, noise))
        buckets.put_back(out)
        return codes

    def encode(self, x: Tensor, segments: tuple[int, ...], noise: Noise) -> Message:
        return self.encode_each(x.split(segments, dim=1), segments, noise)

    def encode_each(
        self, tensors: Sequence[Tensor], segments: tuple[int, ...], noise: Noise
    ) -> Message:
        buckets = self.buckets(segments, tensors[0].device)
        if native := self._native(tensors[0], buckets):
            return self._encode_native(native, buckets, tensors, noise)
        return self._encode_rows(buckets.take(tensors), buckets, noise)

    def encode_corrected(
        self,
        tensors: Sequence[Tensor],
        residual: Sequence[Tensor],
        alpha: float,
        segments: tuple[int, ...],
        noise: Noise,
        keep: float = 0,
        in_place: bool = False,
    ) -> tuple[Message, list[Tensor]]:
        buckets = self.buckets(segments, tensors[0].device)
        native = self._native(tensors[0], buckets)
        if native and native.fits:
            flat = tensors[0].new_empty(len(tensors[0]), 0 if in_place else sum(segments))
            left = list(residual if in_place else flat.split(segments, dim=1))
            memory = Residual(residual, left, alpha, keep)
            return self._encode_native(native, buckets, tensors, noise, memory), left
        x = flatten_sum(tensors, residual, alpha, in_place and not keep)
        left = list(x.split(segments, dim=1))
        if native:
            message = self._encode_native(native, buckets, left, noise, Residual(None, left))
        else:
            rows = buckets.take(left)
            message = self._encode_rows(rows, buckets, noise)
            self._subtract(message, rows, buckets)
        return message, add_kept(x, residual, keep, segments, in_place)

    def native_for(self, x: Tensor, sizes: Sizes) -> bool:
        """Return whether native code fits and codes tensors of these sizes."""
        native = self._native(x, self.buckets(tuple(sizes.values()), x.device))
        return bool(native and native.fits)

    def encode_with(
        self,
        tensors: Sequence[Tensor],
        sizes: Sizes,
        residual: Residual | None,
        step: Step,
        clip: float = 0,
    ) -> Message:
        """Return the message for tensors and a residual, by native code that clips at deviations.

        Without `clip` nothing is clipped.
        """
        buckets = self.buckets(tuple(sizes.values()), tensors[0].device)
        native, noise = self._native(tensors[0], buckets), step.noise("codec", sizes, CPU)
        assert native
        return self._encode_native(native, buckets, tensors, noise, residual, clip)

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
        words, digits, fitted = native.encode(
            tensors, noise if self.random else None, given, residual, clip
        )
        return [words, digits, self.sends(fitted)]

    def _encode_rows(self, rows: Rows, buckets: Buckets, noise: Noise) -> Message:
        """Return the groups' words `[w, groups, words, row]`, the rest's digits, and parameters."""
        groups, fitted = buckets.groups, buckets.reduce(rows, self.fit)
        table, draws = _of_rows(fitted, groups), noise.at(groups.starts) if self.random else None
        out = torch.empty(
            len(rows.rest),
            len(groups.starts),
            words_of(self.base),
            buckets.row,
            dtype=torch.int32,
            device=buckets.device,
        )
        in_registers = fitted.shape[2] <= _FEW and (
            buckets.device.type == "cpu" or rows_of(self.base) <= _FEW_ROWS
        )
        encode = kernels_of(self).encode if in_registers else kernels_of(self).encode_in_two
        for part, matrix in _blocks(rows):
            encode(
                matrix,
                table[:, part],
                draws.of(part) if draws else None,
                *out[:, part].unbind(2),
            )
        codes = self._rest_codes(rows.rest, fitted, groups, noise)
        return [out, pack_digits(codes, self.base), self.sends(fitted)]

    def _rest_codes(self, rest: Tensor, fitted: Tensor, groups: Groups, noise: Noise) -> Tensor:
        """Return codes `[w, rest]`, uint8, by the kernel for rows, which have one value each."""
        draws = noise.at(groups.rest_positions) if self.random else None
        codes = torch.empty(rest.shape, dtype=torch.uint8, device=rest.device)
        table = fitted.index_select(1, groups.rest_buckets)
        kernels_of(self).codes(rest.unsqueeze(-1), table, draws, codes.unsqueeze(-1))
        return codes

    def decode_add(self, message: Message, segments: tuple[int, ...], out: Tensor) -> None:
        words, digits, sent = message
        buckets = self.buckets(segments, out.device)
        if native := self._native(out, buckets):
            native.decode([part.unsqueeze(0) for part in message], out, mean=False)
            return
        rows = buckets.take(out.split(segments, dim=1))
        table = _of_rows(sent, buckets.groups)
        for part, matrix in _blocks(rows):
            kernels_of(self).decode_add(words[:, part], table[:, part], matrix)
        codes, of_rest = self._rest_of(digits.unsqueeze(0), sent.unsqueeze(0), buckets.groups)
        kernels_of(self).rest_mean(codes, of_rest, True, 1, rows.rest)
        buckets.put_back(rows)

    def _subtract(self, message: Message, rows: Rows, buckets: Buckets) -> None:
        """Subtract what a message says from the values that it was made of."""
        words, digits, sent = message
        table = _of_rows(sent, buckets.groups)
        for part, matrix in _blocks(rows):
            kernels_of(self).subtract(words[:, part], table[:, part], matrix)
        codes, of_rest = self._rest_of(digits.unsqueeze(0), sent.unsqueeze(0), buckets.groups)
        kernels_of(self).rest_mean(codes, of_rest, False, 1, rest := torch.empty_like(rows.rest))
        rows.rest.sub_(rest)
        buckets.put_back(rows)

    def decode_mean(self, messages: Message, segments: tuple[int, ...]) -> Tensor:
        words, digits, sent = messages
        workers, count = words.shape[:2]
        buckets = self.buckets(segments, words.device)
        out = torch.empty(count, sum(segments), dtype=torch.float32, device=words.device)
        if native := self._native(out, buckets):
            native.decode(messages, out, mean=True)
            return out
        rows = buckets.make_room(out.split(segments, dim=1))
        table = _of_rows(sent.flatten(0, 1), buckets.groups).unflatten(0, (workers, count))
        codes, of_rest = self._rest_of(digits, sent, buckets.groups)
        together = _TOGETHER if sent.shape[-1] <= _FEW else _TABLES_TOGETHER
        for first in range(0, workers, together):
            some = slice(first, first + together)
            end = first > 0, workers if some.stop >= workers else 1
            for part, matrix in _blocks(rows):
                kernels_of(self).decode_mean(
                    words[some, :, part], table[some, :, part], *end, matrix
                )
            kernels_of(self).rest_mean(codes[some], of_rest[some], *end, rows.rest)
        buckets.put_back(rows)
        return out

    def _rest_of(self, digits: Tensor, sent: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
        """Return the codes `[W, w, rest]` of the rest, and the parameters of each value."""
        codes = unpack_digits(digits.flatten(0, 1), len(groups.rest_buckets), self.base)
        table = sent.flatten(0, 1).index_select(1, groups.rest_buckets)
        return codes.unflatten(0, digits.shape[:2]), table.unflatten(0, digits.shape[:2])


def _of_rows(fitted: Tensor, groups: Groups) -> Tensor:
    """Return the parameters of each row, `[w, groups, rows, k]`, from `[w, buckets, k]`."""
    index = groups.buckets.flatten()
    each = fitted[:, : len(index)] if groups.one_row else fitted.index_select(1, index)
    return each.view(len(fitted), *groups.buckets.shape, fitted.shape[2])


def _blocks(rows: Rows) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks for one kernel call each: a slice of groups, and their values."""
    for place, matrix in rows.matrices:
        workers, count, together, row = matrix.shape
        for part in block_slices(count, workers * together * row, matrix.device):
            yield slice(place.start + part.start, place.start + part.stop), matrix[:, part]


@lru_cache(maxsize=64)
def _one_pass(method: Bucketed, buckets: Buckets) -> OnePass:
    assert method.kinds
    return OnePass(
        method.kinds, method.base, getattr(method, "highest", 0), method.levels_of_all, buckets
    )
