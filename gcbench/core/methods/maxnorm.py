"""QSGDMaxNorm, single-scale and multi-scale: an all-reduce adds codes on one grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from gcbench.core.codecs.buckets import buckets_of
from gcbench.core.codecs.kernels import block_slices, kernel
from gcbench.core.codecs.native import address, is_native, load_native
from gcbench.core.codecs.noise import Draws, Noise, unit_interval
from gcbench.core.codecs.one_pass import Kinds, OnePass
from gcbench.core.codecs.packing import EACH_VALUE, ONE_SPAN, Units, pack, unpack
from gcbench.core.codecs.scales import NORMS, Norm, stochastic_round
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Given,
    Grads,
    Properties,
    State,
    Step,
    sizes_of,
    unflatten,
    view_flat,
)
from gcbench.core.exchange.sums import sum_codes
from gcbench.core.fields import Checked, Distinct, example

ManyLevels = Annotated[int, Field(ge=1, le=2**12)]
_TINY = 2.0**-100
_LARGEST = Kinds("largest", "grid", "grid")


@dataclass(frozen=True)
class MaxNorm(Checked):
    """QSGD-MN: all workers round to the same grid, that of the largest norm.

    Vineeth S, "Unbiased Single-scale and Multi-scale Quantizers for Distributed Optimization",
    2021, algorithm 1 (QSGD-MN). For the whole gradient g_m of worker m, with ||w|| = max over
    workers of ||g_m||:

        zeta_m = s sgn(g_m) xi(|g_m| / ||w||),  xi in {0, 1/s, ..., 1} with E[xi(a)] = a
        update = ||w|| sum_m zeta_m / (s M)

    for M workers, equations 7 to 9. Unbiased, and with either norm E||Q(g) - g||^2 <= min(n / s^2,
    sqrt(n) / s) ||w||_2^2 for n values (lemma 1, whose additional 1 is not needed).

    Sends a norm of 32 bits (an all-reduce with MAX), and codes that an all-reduce adds, in lanes of
    b = ceil(log2(2 M s + 1)) bits, floor(64 / b) per 64-bit word, in which no sum can overflow.

    Here a code of `bits` has s = 2^(bits-1) - 1 levels and a sign. The paper's "b bits" leave out
    the sign and mean s = 2^b (in the text) or 2^b - 1 (in the authors' code; our bits = b + 1).

    Differences from the paper: it counts 32 + n (ceil(log2 s) + 1) bits, which are enough for a
    single code (unless s is a power of two) but not for a sum of codes. The authors' code sends
    int8 or int32; until its commit 2ce3c49 (June 2021) it added updates, which the text averages,
    and since 7537e00 (September 2021) it divides by M. The text has `norm=l2`, but its curves were
    made with `linf` (the maximum): with the 2-norm of millions of values, nearly all codes are 0.
    """

    levels: ManyLevels  # s
    norm: Literal["linf", "l2"] = "linf"
    properties: ClassVar[Properties] = Properties(unbiased=True, scope="global", divisible=True)

    @property
    def analytic_bits_per_value(self) -> float:
        return math.ceil(math.log2(self.levels)) + 1

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        return self._code(view_flat(grads), grads, comm, step).aggregate(grads, state, comm)

    def aggregate_corrected(
        self, given: Given, state: State, comm: Comm, step: Step
    ) -> tuple[Aggregated, Grads]:
        g = given.flat()
        coded = self._code(g, given.grads, comm, step, left=g)
        return coded.aggregate(given.grads, state, comm), given.left_in(g)

    def _code(
        self, g: Tensor, like: Grads, comm: Comm, step: Step, left: Tensor | None = None
    ) -> _OnGrid:
        w = _largest_norm(g, self.norm, comm)
        return _code_on_grid(g, w, self.levels, step.noise("codec", sizes_of(like), g.device), left)


@dataclass(frozen=True)
class MultiScale(Checked):
    """QSGD-MN-TS and more scales: every value on the finest grid that all workers can use.

    Vineeth S, 2021, algorithm 2 (QSGD-MN-TS for two scales), equations 10 to 13. Value i uses the
    largest of the scales s_1 < ... < s_N at which the codes of all workers are in the range of the
    smallest scale's codes:

        s*_i = min over workers of max {s_j : s_j |g_i| <= s_1 ||w||}
        update_i = ||w|| sum_m zeta_mi / (s*_i M),   zeta_mi as in `MaxNorm` with s*_i

    Unbiased, with lemma 1's bound for s_1 (lemma 2); no code is above s_1. `scales` are in bits:
    `scales=[2,6]` are 2^2 and 2^6 levels, the paper's (2, 6). A single one, `scales=[8]`, is the
    paper's QSGD-MN with 8 bits.

    Sends what `MaxNorm` sends for s = s_1, and before that N - 1 packed bits per value, of which
    bit j tells whether s_(j+1) fits. Their bitwise AND over all workers (an all-reduce; on a GPU an
    all-gather, because NCCL has no bitwise reductions) gives the smallest of the workers' scales.

    Differences from the paper: it counts ceil(log2 N) bits for the scale, which is N - 1 for N = 2
    and 3. The authors' code chooses a scale by the rounded code, with 2^b - 1 levels.
    """

    scales: Annotated[Distinct[Annotated[int, Field(ge=0, le=12)]], example([2, 6])]
    """log2 of the levels of each scale, without sign; each value uses the largest scale at which
    its codes fit [Vineeth S, algorithm 2]"""
    norm: Literal["linf", "l2"] = "linf"
    properties: ClassVar[Properties] = Properties(unbiased=True, scope="global", divisible=True)

    @property
    def levels(self) -> list[int]:
        """Return s_1 < ... < s_N."""
        return [2**bits for bits in sorted(self.scales)]

    @property
    def analytic_bits_per_value(self) -> float:
        return min(self.scales) + 1 + math.ceil(math.log2(len(self.scales)))

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        return self._code(view_flat(grads), grads, comm, step).aggregate(grads, state, comm)

    def _code(self, g: Tensor, like: Grads, comm: Comm, step: Step) -> _OnGrid:
        w, smallest = _largest_norm(g, self.norm, comm), self.levels[0]
        reach = w * (smallest / self.shared_scales(g, w, comm))
        return _code_on_grid(g, reach, smallest, step.noise("codec", sizes_of(like), g.device))

    def shared_scales(self, g: Tensor, w: Tensor, comm: Comm) -> Tensor:
        """Return s* of every value, `[1, n]`."""
        smallest, *larger = self.levels
        shared = torch.full((1, g.shape[1]), smallest, dtype=torch.float32, device=g.device)
        if not larger:
            return shared
        fits = torch.cat([g.abs() <= w * (smallest / s) for s in larger], dim=1)
        agreed = comm.bitwise_and([pack(fits.view(torch.uint8), 1)])[0]
        everywhere = unpack(agreed, fits.shape[1], 1).view(torch.bool)
        for s, fitting in zip(larger, everywhere.split(g.shape[1], dim=1), strict=True):
            shared.masked_fill_(fitting, s)
        return shared


def _largest_norm(g: Tensor, norm: Norm, comm: Comm) -> Tensor:
    """Return the largest norm `[1, 1]` of all workers' gradients `[w, n]`."""
    if norm == "linf" and is_native(g):  # in one pass
        buckets = buckets_of((g.shape[1],), None, g.device)
        return comm.max([OnePass(_LARGEST, 2, 1, None, buckets).fit([g])[:, 0]])[0]
    return comm.max([NORMS[norm](g).unsqueeze(1)])[0]


class _OnGrid(NamedTuple):
    """Codes `[w, n]` from 0 to 2 `levels`, where `levels` stands for zero, on a grid."""

    codes: Tensor
    levels: int
    unit: Tensor  # a step of the grid, times `lift`: of all values, or of each
    lift: Tensor

    def aggregate(self, like: Grads, state: State, comm: Comm) -> Aggregated:
        codes, levels, unit, lift = self
        divisor = comm.workers * lift
        units = Units(1, unit, divisor, ONE_SPAN if unit.shape[1] == 1 else EACH_VALUE)
        update = sum_codes(
            codes, 2 * levels, comm, units, lambda sums: _values(sums, unit, divisor)
        )
        return Aggregated(
            unflatten(update, like),
            lambda: unflatten(_values(codes - levels, unit, lift), like),
            state,
        )


def _code_on_grid(
    g: Tensor, reach: Tensor, levels: int, noise: Noise, left: Tensor | None = None
) -> _OnGrid:
    """Return codes of `g` with `levels` steps from 0 to `reach`.

    `reach` is `[1, 1]`, or `[1, n]` with one entry per value. `left`, which may be g, becomes what
    codes leave out.
    """
    # A step of the grid may be too small for float32. Scaling by a power of two and back avoids
    # that without rounding.
    lift = torch.where(reach < _TINY, 1 / _TINY, 1).to(reach.dtype)
    unit = reach * lift / levels
    return _OnGrid(_codes(g, reach, levels, noise, unit, lift, left), levels, unit, lift)


def _codes(
    v: Tensor,
    reach: Tensor,
    levels: int,
    noise: Noise,
    unit: Tensor,
    lift: Tensor,
    left: Tensor | None,
) -> Tensor:
    """Return int16 codes `[w, n]` from 0 to 2 `levels`, of which `levels` stands for zero."""
    codes = torch.empty(v.shape, dtype=torch.int16, device=v.device)
    if is_native(v):
        lengths = np.array([length for _, length in noise.runs], dtype=np.int64)
        n = int(lengths.sum())
        starts = noise.starts(tuple(length for _, length in noise.runs))
        count = reach.shape[1]
        factors = [address(x, torch.float32, count) for x in (reach, unit, lift)]
        rows = zip(v.contiguous(), starts, noise.keys.contiguous(), codes, strict=True)
        for k, (row, first, key, out) in enumerate(rows):
            load_native().grid_codes(
                *(len(lengths), lengths.ctypes.data, address(first, torch.int32, len(lengths))),
                *(address(key, torch.int32, 2), address(row, torch.float32, n)),
                *(factors[0], count > 1, levels, address(out, torch.int16, n)),
                address(None if left is None else left[k], torch.float32, n),
                *(*factors[1:], torch.get_num_threads()),
            )
        return codes
    each = reach.expand(1, v.shape[1])
    for columns in block_slices(v.shape[1], v.shape[0], v.device):
        draws = noise.of(columns)
        _write_codes(v[:, columns], each[:, columns], levels, draws, codes[:, columns])
    if left is not None:
        left.sub_(_values(codes - levels, unit, lift))
    return codes


@kernel
def _write_codes(v: Tensor, reach: Tensor, levels: int, draws: Draws, out: Tensor) -> None:
    # Dividing before multiplying keeps the share at 1 or below, even for denormals.
    share = v.abs() / torch.where(reach > 0, reach, 1)
    magnitude = stochastic_round(share * levels, unit_interval(draws.words(v.shape[-1])))
    out.copy_(torch.where(v < 0, -magnitude, magnitude) + levels)


@kernel
def _values(codes: Tensor, unit: Tensor, divisor: Tensor) -> Tensor:
    """Return the values of codes that are centered on zero."""
    return codes * unit / divisor
