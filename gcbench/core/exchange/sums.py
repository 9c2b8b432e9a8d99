"""All-reduces of codes on a grid that all workers share, and of counts of levels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gcbench.core.codec import GridCodec, TableCodec
from gcbench.core.codecs.levels import level_values
from gcbench.core.codecs.packing import Units, pack_lanes, sum_of_codes, unpack_lanes
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Grads,
    Properties,
    State,
    Step,
    flatten,
    sizes_of,
    unflatten,
)


@dataclass(frozen=True)
class SumExchange:
    """An all-reduce of codes: all workers use the same grid, that of the largest scale.

        scale = max over workers;   update = decode(sum of codes) / W

    A sum of W codes of s levels needs b = ceil(log2(2 W s + 1)) bits, so floor(64 / b) lanes share
    a 64-bit word. This never takes more than the smallest integer type that holds such sums, and
    takes less than 8 bits per value if W s <= 63. What a worker receives grows with W only by that
    logarithm.
    """

    codec: GridCodec

    @property
    def properties(self) -> Properties:
        codec = self.codec.properties
        return Properties(unbiased=codec.unbiased, scope=codec.scope, divisible=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        x, sizes = flatten(grads), sizes_of(grads)
        segments, noise = tuple(sizes.values()), step.noise("codec", sizes, x.device)
        scales = comm.max([self.codec.scales_of(x, segments)])[0]  # [1, buckets]
        codes = self.codec.codes_of(x, segments, scales.expand(x.shape[0], -1), noise)
        units = Units(
            self.codec.highest / 2,
            scales,
            torch.full_like(scales, comm.workers),
            self.codec.buckets(segments, x.device).spans,
        )

        def values(centered: Tensor) -> Tensor:
            return self.codec.values_of(centered, segments, scales).div_(comm.workers)

        update = sum_codes(codes, self.codec.highest, comm, units, values)

        def sent() -> Grads:
            centered = codes - self.codec.highest / 2
            return unflatten(self.codec.values_of(centered, segments, scales), grads)

        return Aggregated(unflatten(update, grads), sent, state)


def sum_codes(
    codes: Tensor, highest: int, comm: Comm, units: Units, values: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the values `[1, n]` of the sum of all workers' codes `[w, n]`, from 0 to `highest`.

    They are sent in lanes that are wide enough for their sum.
    """
    most = comm.workers * highest
    return sum_of_codes(
        codes, most.bit_length(), most, lambda words: comm.sum([words])[0], units, values
    )


@dataclass(frozen=True)
class CountExchange:
    """All workers agree on levels, and an all-reduce counts how many workers chose each.

    ORQ's option (a), section 4: levels "coherent among all the worker nodes", so that the average
    needs few bits.

        b_1 = min, b_s = max, the others the mean of the workers' levels
        c_k = number of workers that chose b_k
        update = (1/W) sum over k of c_k b_k

    The mean of unevenly spaced levels is in general not a level, so their codes cannot be added.
    Counts can: those of all levels except the first are sent as digits in base W + 1, which take
    log2(W + 1) (s - 1) bits per value, in lanes of a 64-bit word. For 3, 5 and 9 levels, a worker
    receives less than with a gather from about 5, 7 and 10 workers on. In addition, each bucket
    costs an all-reduce of s floats. The levels do not minimize the error of any single worker.
    """

    codec: TableCodec

    @property
    def properties(self) -> Properties:
        codec = self.codec.properties
        return Properties(unbiased=codec.unbiased, scope=codec.scope, divisible=True)

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        x, sizes = flatten(grads), sizes_of(grads)
        segments = tuple(sizes.values())
        buckets = self.codec.buckets(segments, x.device)
        tables = _agree(self.codec.fit_buckets(x, segments), comm)  # [1, buckets, s]
        noise = step.noise("codec", sizes, x.device)
        codes = self.codec.codes_by(x, segments, tables.expand(x.shape[0], -1, -1), noise)
        levels = buckets.spread(tables[0].T).unsqueeze(1).unbind(0)
        counts = _count(codes, self.codec.level_count, comm)
        update = torch.zeros_like(x[:1])
        for count, level in zip(counts, levels, strict=True):
            update.addcmul_(count, level)

        def sent() -> Grads:
            return unflatten(level_values(codes, levels), grads)

        return Aggregated(unflatten(update.div_(comm.workers), grads), sent, state)


def _agree(tables: Tensor, comm: Comm) -> Tensor:
    """Return levels `[1, buckets, s]` for all workers, from each worker's `[w, buckets, s]`."""
    least, greatest = comm.min([tables[..., :1]])[0], comm.max([tables[..., -1:]])[0]
    if tables.shape[2] == 2:
        return torch.cat([least, greatest], dim=2)
    # Rounding may put the mean of equal levels outside the range.
    inner = comm.mean([tables[..., 1:-1]])[0].maximum(least).minimum(greatest)
    return torch.cat([least, inner, greatest], dim=2)


def _count(codes: Tensor, levels: int, comm: Comm) -> list[Tensor]:
    """Return how many workers chose each level, one `[1, n]` per level."""
    base = comm.workers + 1
    bits = (base ** (levels - 1) - 1).bit_length()
    if bits > 31:
        raise ValueError(
            f"exchange=sum: counts of {levels} levels by {comm.workers} workers take {bits} bits "
            "per value, no fewer than fp32; type exchange=scatter_coded, or a smaller level_count"
        )
    weights = torch.tensor([0, *(base**k for k in range(levels - 1))], device=codes.device)
    rest = unpack_lanes(
        comm.sum([pack_lanes(weights[codes.long()], bits)])[0], codes.shape[1], bits
    )
    counts = [rest // base**k % base for k in range(levels - 1)]
    return [comm.workers - torch.stack(counts).sum(0), *counts]
