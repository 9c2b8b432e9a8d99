"""The native code of codecs in buckets (`bucketed.cpp`): fit, draw, code and pack in one pass.

It has the bits of the eager kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, byref, c_float, c_int64, c_void_p, cast
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from gcbench.core.codecs.blocks import count_blocks
from gcbench.core.codecs.buckets import Buckets
from gcbench.core.codecs.native import address, addresses, load_native
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.radix import packed_digits, word_of

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

FITTED = {"sides": 2, "halves": 3, "unbiased": 2, "biased": 2, "length": 2}


Parameters = Sequence[Tensor]
"""The parameters of each value's bucket, each broadcastable to the values."""


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
                *("fit", "code", "value", "base", "highest", "digits", "bits"),
                *("fitted", "step", "bucket_size", "buckets", "tensors"),
            )
        ],
        ("sizes", c_void_p),
        ("levels", c_void_p),
    ]


class Residual(NamedTuple):
    """A residual of error feedback `[w, segment]` each, and where to write the next one.

    What is coded is x + alpha before, what is left that minus what is sent plus keep before.
    `before` may be `left`. With scales `[w, blocks]`, they are int8.
    """

    before: Sequence[Tensor]
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
        self,
        kinds: Kinds,
        base: int,
        highest: int,
        levels: Sequence[float] | None,
        buckets: Buckets,
    ) -> None:
        self.fits = kinds.fit != "given"
        self._sizes = np.array(buckets.segments, dtype=np.int64)  # is pointed to, as are levels
        self._levels = None if levels is None else torch.tensor(levels, dtype=torch.float32)
        self._segments = buckets.segments
        self._values, self._buckets = sum(buckets.segments), buckets.count
        self._bytes = packed_digits(self._values, base)
        self._fitted = base if kinds.code == "table" else FITTED.get(kinds.fit, 1)
        self._job = _Job(
            *(get_args(of).index(kind) for of, kind in zip((Fit, Code, Value), kinds, strict=True)),
            *(base, highest, *word_of(base), self._fitted, 2 if kinds.fit == "halves" else 1),
            *(buckets.size or 0, buckets.count, len(buckets.segments), self._sizes.ctypes.data),
            address(self._levels, torch.float32, 2 * base - 1),
        )

    def fit(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the fitted parameters `[w, buckets, k]`."""
        fitted = self._room(tensors)
        self._encode(tensors, fitted)
        return fitted

    def codes(self, tensors: Sequence[Tensor], fitted: Tensor, noise: Noise) -> Tensor:
        """Return the codes `[w, n]`, uint8, of all values with given parameters."""
        codes = torch.empty(len(tensors[0]), self._values, dtype=torch.uint8)
        self._encode(tensors, fitted.contiguous(), noise, given=True, codes=codes)
        return codes

    def encode(
        self,
        tensors: Sequence[Tensor],
        noise: Noise | None,
        fitted: Tensor | None = None,
        residual: Residual | None = None,
        clip: float = 0,
    ) -> tuple[Tensor, Tensor]:
        """Return the digits of all codes, `[w, bytes]`, and parameters.

        Parameters are fitted unless they are given, to values that are clipped to `clip` standard
        deviations of their tensor, unless that is 0.
        """
        parameters = self._room(tensors) if fitted is None else fitted.contiguous()
        digits, given = (
            torch.empty(len(tensors[0]), self._bytes, dtype=torch.uint8),
            fitted is not None,
        )
        self._encode(tensors, parameters, noise, given, residual, digits, clip=clip)
        return digits, parameters

    def decode(self, message: Sequence[Tensor], out: Tensor, into: int) -> None:
        """Add the values of messages `[W, r, ...]` to `out`, write their mean, or subtract them."""
        digits, sent = (part.contiguous() for part in message)
        workers, rows, of_bucket = *digits.shape[:2], sent.shape[3]
        load_native().decode(
            *(byref(self._job), workers, rows),
            *(address(digits, torch.uint8, workers * rows * self._bytes), self._bytes),
            *(address(sent, torch.float32, workers * rows * self._buckets * of_bucket), of_bucket),
            addresses(out.split(self._segments, dim=1), rows, self._segments),
            *(into, torch.get_num_threads()),
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
        digits: Tensor | None = None,
        codes: Tensor | None = None,
        clip: float = 0,
    ) -> None:
        job, workers, sizes = _Job.from_buffer_copy(self._job), len(tensors[0]), self._segments
        job.fit = 0 if given else job.fit
        starts = keys = None
        if noise:
            starts, keys = noise.starts(sizes), noise.keys.contiguous()
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
            *(byref(job), workers, addresses(tensors, workers, sizes), feedback, clip),
            address(starts, torch.int32, workers * len(tensors)),
            address(keys, torch.int32, workers * 2),
            address(fitted, torch.float32, workers * self._buckets * self._fitted),
            *(address(digits, torch.uint8, workers * self._bytes), self._bytes),
            address(codes, torch.uint8, workers * self._values),
            torch.get_num_threads(),
        )
