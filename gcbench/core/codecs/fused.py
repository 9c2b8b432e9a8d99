"""Codecs in buckets on a GPU: `one_pass.py` for hand-written Triton, with the same bits.

A launch fits all buckets and codes their values, a second one packs the codes, and a single one
decodes the messages of all workers. Buckets that are too large for a program take two more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gcbench.core.codecs.buckets import Buckets, buckets_of
from gcbench.core.codecs.hadamard import least_block, padded
from gcbench.core.codecs.launches import PIECE, launch, pieces_of, pointers
from gcbench.core.codecs.native import ADD, SUBTRACT, WRITE
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.one_pass import FITTED, Kinds, Residual
from gcbench.core.codecs.radix import pack_padded, unit_of, word_of

LARGEST = 1 << 15  # values of a bucket that one program fits
SORTED = 1 << 13  # values that one program sorts
_SORTING = {"clamp", "quantiles", "least_error"}
_IN_TWO_STEPS = {"halves", "unbiased", "biased"}  # which need a bucket's first sums for others
_INTO = {ADD: "add", WRITE: "write", SUBTRACT: "subtract"}


class Fused:
    """The Triton of a method for tensors of given sizes, of which it can rotate all buckets."""

    def __init__(
        self,
        kinds: Kinds,
        base: int,
        highest: int,
        levels: Sequence[float] | None,
        buckets: Buckets,
        rotates: bool = False,
    ) -> None:
        segments, largest = buckets.segments, buckets.size or max(buckets.segments)
        most = SORTED if kinds.fit in _SORTING else LARGEST
        self._is_large = min(largest, max(segments)) > most
        too_large = _SORTING | _IN_TWO_STEPS if self._is_large else set()
        self.fits = kinds.fit not in {"given", *too_large}
        self._kinds, self._buckets = kinds, buckets
        self._fitted = base if kinds.code == "table" else FITTED.get(kinds.fit, 1)
        least, piece = least_block(largest) if rotates else 0, PIECE if self._is_large else most
        self._pieces = pieces_of(segments, buckets.device, buckets.size, piece, least)
        self._values = sum(padded(segments, largest) if rotates else segments)
        self._levels = None
        if levels is not None:
            self._levels = torch.tensor(levels, dtype=torch.float32, device=buckets.device)
        step = 2 if kinds.fit == "halves" else 1
        self._coded = {"CODE": kinds.code, "FITTED": self._fitted, "STEP": step}
        self._coded["LEVELS"] = 1 << (base - 1).bit_length()
        self._valued = {"VALUE": kinds.value, "BASE": base, "HIGHEST": highest}
        self._base = base
        self._block = {"ROTATES": rotates, "BLOCK": self._pieces.block}

    def fit(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the fitted parameters `[w, buckets, k]`."""
        return self._fit(tensors, None) if self._is_large else self._code(tensors, None)

    def codes(self, tensors: Sequence[Tensor], fitted: Tensor, noise: Noise) -> Tensor:
        """Return the codes `[w, n]`, uint8, of all values with given parameters."""
        codes = self._empty(tensors, self._values, torch.uint8)
        self._code(tensors, fitted.contiguous(), noise, None, codes)
        return codes

    def encode(
        self,
        tensors: Sequence[Tensor],
        noise: Noise | None,
        fitted: Tensor | None = None,
        residual: Residual | None = None,
        clip: float = 0,
    ) -> tuple[Tensor, Tensor]:
        """Return the digits of all codes, `[w, bytes]`, and parameters, fitted or given."""
        assert not clip and not (residual and residual.scales), "only native code does this"
        if fitted is None and self._is_large:
            fitted = self._fit(tensors, residual)
        n = self._values
        codes = self._empty(tensors, n + -n % unit_of(self._base), torch.uint8)
        if codes.shape[1] > n:
            codes[:, n:] = 0
        parameters = self._code(tensors, fitted, noise, residual, codes)
        return pack_padded(codes, n, self._base), parameters

    def decode(
        self, message: Sequence[Tensor], out: Tensor, into: int, noise: Noise | None = None
    ) -> None:
        """Add the values of messages `[W, r, ...]` to `out`, write their mean, or subtract them.

        Values that were rotated take the noise of all messages, worker by worker.
        """
        digits, sent = message[0], message[1].contiguous()
        workers, rows = digits.shape[:2]
        starts, keys, starts_by_row = self._draws(noise)
        digits_of_word, bits = word_of(self._base)
        launch(
            "decode_buckets",
            (self._pieces.number, rows),
            *(digits, sent, self._levels, self._pieces.table, starts, keys, out),
            *(len(self._buckets.segments), starts_by_row, workers, *digits.stride()[:2]),
            *(-(-self._values // digits_of_word), out.stride(0), self._buckets.count),
            reads=[digits, sent, self._pieces.table, *([out] * (into != WRITE))],
            writes=[out],
            **(self._valued | self._block),
            INTO=_INTO[into],
            SENT=sent.shape[3],
            DIGITS=digits_of_word,
            BITS=bits,
        )

    def _code(
        self,
        tensors: Sequence[Tensor],
        fitted: Tensor | None,
        noise: Noise | None = None,
        residual: Residual | None = None,
        codes: Tensor | None = None,
    ) -> Tensor:
        """Fit unless there are parameters, which are returned, and write the codes, if any."""
        given = fitted is not None
        parameters = self._room(tensors) if fitted is None else fitted.contiguous()
        starts, keys, starts_by_row = self._draws(noise)
        table, rows = self._pieces.table, len(tensors[0])
        before, left = (residual.before, residual.left) if residual else ((), ())
        launch(
            "code_buckets",
            (self._pieces.number, rows),
            *(pointers(part) if part else None for part in (tensors, before, left)),
            *(table, starts, keys, parameters, self._levels, codes),
            *(len(tensors), starts_by_row, self._buckets.count),
            codes.stride(0) if codes is not None else 0,
            reads=[*tensors, *before, table, *([parameters] if given else ())],
            writes=[*left, *(x for x in (codes, None if given else parameters) if x is not None)],
            FIT="given" if given else self._kinds.fit,
            ALPHA=residual.alpha if residual else 1,
            KEEP=residual.keep if residual else 0,
            **(self._coded | self._valued | self._block),
        )
        return parameters

    def _fit(self, tensors: Sequence[Tensor], residual: Residual | None) -> Tensor:
        """Return the parameters of large buckets, from sums over the pieces of each."""
        pieces, rows, fitted = self._pieces, len(tensors[0]), self._room(tensors)
        sums = fitted.new_empty(rows, pieces.number, 4, dtype=torch.float64)
        before = residual.before if residual else ()
        launch(
            "add_up",
            (pieces.number, rows),
            *(pointers(part) if part else None for part in (tensors, before)),
            *(pieces.table, sums, len(tensors), pieces.number),
            reads=[*tensors, *before, pieces.table],
            writes=[sums],
            ALPHA=residual.alpha if residual else 1,
            FIT=self._kinds.fit,
            BLOCK=pieces.block,
        )
        launch(
            "fit_sums",
            (self._buckets.count, rows),
            *(sums, pieces.ends, self._buckets.sizes, fitted, pieces.number, self._buckets.count),
            reads=[sums, pieces.ends, self._buckets.sizes],
            writes=[fitted],
            FIT=self._kinds.fit,
            CLIP=0,
            FITTED=self._fitted,
            BLOCK=512,
        )
        return fitted

    def _draws(self, noise: Noise | None) -> tuple[Tensor | None, Tensor | None, bool]:
        """Return what places in tensors lack to elements, keys, and whether rows differ."""
        if noise is None:
            return None, None, False
        draws = noise.by_segment(self._buckets.segments)
        return draws.first, draws.keys, len(draws.first) > 1

    def _empty(self, tensors: Sequence[Tensor], n: int, dtype: torch.dtype) -> Tensor:
        return tensors[0].new_empty(len(tensors[0]), n, dtype=dtype)

    def _room(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].new_empty(len(tensors[0]), self._buckets.count, self._fitted)


def clip_fused(tensors: Sequence[Tensor], deviations: float) -> list[Tensor]:
    """Return tensors `[w, n]` clipped to so many standard deviations of each."""
    sizes, rows, first = tuple([x.shape[1] for x in tensors]), len(tensors[0]), tensors[0]
    pieces, places = pieces_of(sizes, first.device), pointers(tensors)
    sums = first.new_empty(rows, pieces.number, 4, dtype=torch.float64)
    limits, out = first.new_empty(rows, len(sizes)), first.new_empty(rows, sum(sizes))
    lengths = buckets_of(sizes, None, first.device).sizes
    launch(
        "add_up",
        (pieces.number, rows),
        *(places, None, pieces.table, sums, len(sizes), pieces.number),
        reads=[*tensors, pieces.table],
        writes=[sums],
        ALPHA=1,
        FIT="deviation",
        BLOCK=pieces.block,
    )
    launch(
        "fit_sums",
        (len(sizes), rows),
        *(sums, pieces.ends, lengths, limits, pieces.number, len(sizes)),
        reads=[sums, pieces.ends],
        writes=[limits],
        FIT="deviation",
        CLIP=deviations,
        FITTED=1,
        BLOCK=512,
    )
    launch(
        "clip_each",
        (pieces.number, rows),
        *(places, limits, pieces.table, out, len(sizes), out.stride(0)),
        reads=[*tensors, limits, pieces.table],
        writes=[out],
        BLOCK=pieces.block,
    )
    return list(out.split(sizes, dim=1))
