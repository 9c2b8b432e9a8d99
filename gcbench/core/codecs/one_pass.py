"""Codecs in buckets: code, draw and pack in one pass over memory, by kernels or by native code.

Native code (`bucketed.cpp`) also fits parameters. It has the bits of the eager kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import Structure, byref, c_float, c_int64, c_void_p, cast
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from gcbench.core.codecs.blocks import count_blocks
from gcbench.core.codecs.buckets import Buckets
from gcbench.core.codecs.kernels import kernel
from gcbench.core.codecs.native import address, addresses, load_native
from gcbench.core.codecs.noise import Draws, Noise
from gcbench.core.codecs.radix import (
    from_words,
    pack_digits,
    rows_of,
    to_words,
    unpack_digits,
    word_of,
    words_of,
)

# In the order of the enumerations in fits.h.
Fit = Literal[
    "given",
    "largest",
    "norm",
    "mean",
    "rms",
    "sides",
    "halves",
    "clamp",
    "quantiles",
    "least_error",
    "unbiased",
    "biased",
    "length",
]
Code = Literal["grid", "nearest", "reaches", "table", "nearest_level"]
Value = Literal["grid", "signed", "level", "times_level"]

RESIDUAL_BLOCK = 512  # how many values of a residual in bytes share a scale

_FITTED = {"sides": 2, "halves": 3, "unbiased": 2, "biased": 2, "length": 2}


class Kinds(NamedTuple):
    """How a method fits a bucket's parameters, and codes and decodes values with them."""

    fit: Fit
    code: Code
    value: Value


class _Job(Structure):
    """`Job` of fits.h."""

    _fields_ = [
        *[
            (name, c_int64)
            for name in (
                *("fit", "code", "value", "base", "highest", "digits", "bits", "rows", "words"),
                *("fitted", "step", "row", "bucket_size", "buckets", "full", "groups", "rest"),
                *("row_pieces", "tails", "shorts"),
            )
        ],
        ("pieces", c_void_p),
        ("levels", c_void_p),
    ]


class Residual(NamedTuple):
    """A residual of error feedback `[w, segment]` each, and where to write the next one.

    What is coded is x + alpha before, what is left that minus what is sent plus keep before.
    `before` may be `left`; None: what is coded is x. With scales `[w, blocks]`, they are int8.
    """

    before: Sequence[Tensor] | None
    left: Sequence[Tensor]
    alpha: float = 1
    keep: float = 0
    scales: Sequence[Tensor] | None = None
    new_scales: Sequence[Tensor] | None = None


class _Feedback(Structure):
    """`Feedback` of bucketed.cpp."""

    _fields_ = [
        *[(name, c_void_p) for name in ("before", "left", "scales", "new_scales")],
        *[(name, c_float) for name in ("alpha", "keep")],
    ]


class OnePass:
    """The native code of a method for tensors of given sizes."""

    def __init__(
        self, kinds: Kinds, base: int, highest: int, levels: Tensor | None, buckets: Buckets
    ) -> None:
        rows, tails, shorts = buckets.places()
        self.fits = kinds.fit != "given"
        self._pieces = np.array([*rows, *tails, *shorts], dtype=np.int64)
        self._levels = levels  # is pointed to
        self._base, self._row, self._words = base, buckets.row, words_of(base)
        self._segments, self._buckets = buckets.segments, buckets.count
        in_rows = sum(piece[2] for piece in rows) // buckets.row
        self._groups = in_rows // rows_of(base)
        in_groups = self._groups * rows_of(base) * buckets.row
        self._rest = sum(buckets.segments) - in_groups
        self._in_words = self._groups * self._words * self._row
        self._fitted = base if kinds.code == "table" else _FITTED.get(kinds.fit, 1)
        self._job = _Job(
            *(get_args(of).index(kind) for of, kind in zip((Fit, Code, Value), kinds, strict=True)),
            *(base, highest, *word_of(base), rows_of(base), self._words),
            *(self._fitted, 2 if kinds.fit == "halves" else 1),
            *(buckets.row, buckets.size or 0, buckets.count, buckets.full_count),
            *(self._groups, self._rest, len(rows), len(tails), len(shorts)),
            self._pieces.ctypes.data,
            address(levels, torch.float32, 2 * base - 1),
        )

    def fit(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the fitted parameters `[w, buckets, k]`."""
        fitted = self._room(tensors)
        self._encode(tensors, fitted)
        return fitted

    def write_codes(
        self, tensors: Sequence[Tensor], fitted: Tensor, noise: Noise, out: Sequence[Tensor]
    ) -> None:
        """Write the codes of all values with given parameters to uint8 tensors."""
        self._encode(tensors, fitted.contiguous(), noise, given=True, codes=out)

    def encode(
        self,
        tensors: Sequence[Tensor],
        noise: Noise | None,
        fitted: Tensor | None = None,
        residual: Residual | None = None,
        clip: float = 0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the groups' words `[w, groups, words, row]`, the rest's digits, and parameters.

        Parameters are fitted unless they are given, to values that are clipped to `clip` standard
        deviations of their tensor, unless that is 0.
        """
        workers = len(tensors[0])
        parameters = self._room(tensors) if fitted is None else fitted.contiguous()
        words = torch.empty(workers, self._groups, self._words, self._row, dtype=torch.int32)
        rest = torch.empty(workers, self._rest, dtype=torch.uint8)
        given = fitted is not None
        self._encode(tensors, parameters, noise, given, residual, words, rest, clip=clip)
        return words, pack_digits(rest, self._base), parameters

    def decode(self, message: Sequence[Tensor], out: Tensor, mean: bool) -> None:
        """Add the values of messages `[W, r, ...]` to `out` `[r, n]`, or write their mean."""
        words, digits, sent = (part.contiguous() for part in message)
        workers, rows = words.shape[:2]
        rest = unpack_digits(digits.flatten(0, 1), self._rest, self._base).contiguous()
        messages, of_bucket = workers * rows, sent.shape[3]
        load_native().decode(
            *(byref(self._job), workers, rows, len(self._segments)),
            address(words, torch.int32, messages * self._in_words),
            address(rest, torch.uint8, messages * self._rest),
            *(address(sent, torch.float32, messages * self._buckets * of_bucket), of_bucket),
            addresses(out.split(self._segments, dim=1), rows, self._segments),
            *(mean, torch.get_num_threads()),
        )

    def _room(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].new_empty(len(tensors[0]), self._buckets, self._fitted)

    def _encode(
        self,
        tensors: Sequence[Tensor],
        fitted: Tensor,
        noise: Noise | None = None,
        given: bool = False,
        residual: Residual | None = None,
        words: Tensor | None = None,
        rest: Tensor | None = None,
        codes: Sequence[Tensor] | None = None,
        clip: float = 0,
    ) -> None:
        job, workers, sizes = _Job.from_buffer_copy(self._job), len(tensors[0]), self._segments
        job.fit = 0 if given else job.fit
        starts = keys = None
        if noise:
            starts = torch.tensor(noise.starts(sizes)).to(torch.int32)
            keys = noise.keys.contiguous()
        feedback, kept = None, []  # `kept` holds arrays that are pointed to
        if residual:
            kind = torch.int8 if residual.scales else torch.float32
            blocks = count_blocks(sizes, RESIDUAL_BLOCK)
            kept = [
                addresses(part, workers, of_part, dtype)
                for part, of_part, dtype in (
                    (residual.before, sizes, kind),
                    (residual.left, sizes, kind),
                    (residual.scales, blocks, torch.float32),
                    (residual.new_scales, blocks, torch.float32),
                )
            ]
            pointers = (cast(places, c_void_p) if places else None for places in kept)
            feedback = byref(_Feedback(*pointers, residual.alpha, residual.keep))
        load_native().encode(
            *(byref(job), workers, len(tensors), addresses(tensors, workers, sizes), feedback),
            *((c_int64 * len(tensors))(*sizes), clip),
            address(starts, torch.int32, workers * len(tensors)),
            address(keys, torch.int32, workers * 2),
            address(fitted, torch.float32, workers * self._buckets * self._fitted),
            address(words, torch.int32, workers * self._in_words),
            address(rest, torch.uint8, workers * self._rest),
            addresses(codes, workers, sizes, torch.uint8),
            torch.get_num_threads(),
        )


Parameters = Sequence[Tensor]
"""The parameters of each value's bucket, each broadcastable to the values."""


class Method(Protocol):
    """The part of a method that kernels read; it can be a key of a dict."""

    @property
    def base(self) -> int: ...

    def code(self, v: Tensor, parameters: Parameters, words: Tensor | None) -> Tensor: ...

    def value(self, codes: Tensor, parameters: Parameters) -> Tensor: ...


class Kernels(NamedTuple):
    encode: Callable[..., None]
    encode_in_two: Callable[..., None]
    codes: Callable[..., None]
    decode_add: Callable[..., None]
    subtract: Callable[..., None]
    decode_mean: Callable[..., None]
    rest_mean: Callable[..., None]


@lru_cache(maxsize=64)
def kernels_of(method: Method) -> Kernels:
    base = method.base

    def codes_of(x: Tensor, table: Tensor, draws: Draws | None) -> Tensor:
        words = draws.words(x.shape[-1]) if draws else None
        return method.code(x, table.unsqueeze(-1).unbind(-2), words)

    def values_of(words: Tensor, table: Tensor) -> Tensor:
        return method.value(from_words(words, base), table.unsqueeze(-1).unbind(-2))

    @kernel
    def encode(x: Tensor, table: Tensor, draws: Draws | None, *out: Tensor) -> None:
        for target, word in zip(out, to_words(codes_of(x, table, draws), base), strict=True):
            target.copy_(word)

    def encode_in_two(x: Tensor, table: Tensor, draws: Draws | None, *out: Tensor) -> None:
        unpacked = torch.empty(x.shape, dtype=torch.int32, device=x.device)
        codes(x, table, draws, unpacked)
        pack(unpacked, *out)

    @kernel
    def pack(codes: Tensor, *out: Tensor) -> None:
        for target, word in zip(out, to_words(codes, base), strict=True):
            target.copy_(word)

    @kernel
    def codes(x: Tensor, table: Tensor, draws: Draws | None, out: Tensor) -> None:
        out.copy_(codes_of(x, table, draws))

    @kernel
    def decode_add(words: Tensor, table: Tensor, out: Tensor) -> None:
        out.add_(values_of(words, table))

    @kernel
    def subtract(words: Tensor, table: Tensor, out: Tensor) -> None:
        # Adding 0.0 turns -0 into 0, as where decoded values are added to zeros.
        out.sub_(values_of(words, table) + 0.0)

    @kernel
    def decode_mean(words: Tensor, table: Tensor, onto: bool, divisor: int, out: Tensor) -> None:
        write_mean([*map(values_of, words.unbind(0), table.unbind(0))], onto, divisor, out)

    @kernel
    def rest_mean(codes: Tensor, table: Tensor, onto: bool, divisor: int, out: Tensor) -> None:
        messages = zip(codes.to(torch.int32).unbind(0), table.unbind(0), strict=True)
        write_mean([method.value(c, of_c.unbind(-1)) for c, of_c in messages], onto, divisor, out)

    def write_mean(values: Sequence[Tensor], onto: bool, divisor: int, out: Tensor) -> None:
        first, *others = values
        # Adding 0.0 turns -0 into 0, as in a sum that starts at zero.
        total = out + first if onto else first + 0.0
        for x in others:
            total = total + x
        out.copy_(total / divisor)

    return Kernels(encode, encode_in_two, codes, decode_add, subtract, decode_mean, rest_mean)
