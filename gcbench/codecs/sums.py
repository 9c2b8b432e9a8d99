"""Sums over buckets in one pass on a GPU: of either sign, beside the bits, and of squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gcbench.codecs.buckets import Groups, Rows, buckets_of
from gcbench.codecs.kernels import kernel
from gcbench.codecs.means import deviation, shifted, standard_deviation
from gcbench.codecs.words import to_words


class Sides(NamedTuple):
    """Sums over the d values of each bucket, float64 `[w, buckets]`."""

    positive: Tensor  # the sum of those that are at least 0
    negative: Tensor  # the sum of the others
    nonnegative: Tensor  # how many are at least 0


def signs_and_sides(rows: Rows, groups: Groups) -> tuple[Tensor, Sides]:
    """Return the bits v >= 0 of groups of rows as words, and the sides of each bucket.

    Groups `[w, groups, 32, row]` become int32 words `[w, groups, 1, row]`, in the order of
    `to_words`. The sides include the values outside groups. A kernel sums rows; then follow the
    sums over buckets.
    """
    parts = [_signs_and_sums(matrix) for _, matrix in rows.matrices]
    workers = len(rows.rest)
    none = rows.rest.new_empty(workers, 0, rows.row, dtype=torch.int32)
    words = torch.cat([none, *(part[0] for part in parts)], dim=1)
    up = rows.rest >= 0
    of_rest = torch.stack([torch.where(up, rows.rest, 0), torch.where(up, 0, rows.rest), up])
    of_rows = [torch.stack(part[1:]).flatten(2) for part in parts]
    return words.unsqueeze(2), Sides(*_by_bucket([*of_rows, of_rest.double()], groups))


def _by_bucket(parts: Sequence[Tensor], groups: Groups) -> Tensor:
    """Return the sums `[k, w, buckets]` of k sums `[k, w, ...]` of rows, and of values outside."""
    items = torch.cat(list(parts), dim=2).permute(2, 0, 1)[groups.by_bucket]
    # `unsafe` skips a check of the lengths, for which the host would wait.
    sums = torch.segment_reduce(items, "sum", lengths=groups.bucket_lengths, unsafe=True)
    return sums.permute(1, 2, 0)


def clip(tensors: Sequence[Tensor], deviations: float) -> list[Tensor]:
    """Return tensors `[w, n]` clipped to so many standard deviations of each, if that is not 0.

    A GPU clips all of them at once.
    """
    if tensors[0].is_cpu:
        sigmas = [standard_deviation(x).unsqueeze(1) for x in tensors]
        each = [(x, _limits(sigma, deviations)) for x, sigma in zip(tensors, sigmas, strict=True)]
        return [x.clamp(-limit, limit) for x, limit in each]
    segments = tuple(x.shape[1] for x in tensors)
    buckets = buckets_of(segments, None, 1, tensors[0].device)
    rows, groups = buckets.take(tensors), buckets.groups
    first = torch.cat([x[:, :1] for x in tensors], dim=1)
    of_rows = [
        _sums_of_shifted(matrix, first[:, groups.buckets[place]]).flatten(2)
        for place, matrix in rows.matrices
    ]
    rest = _sums_of_shifted(rows.rest.unsqueeze(-1), first[:, groups.rest_buckets])
    sums = _by_bucket([*of_rows, rest], groups)
    limits, ends = _limits_of(sums, buckets.sizes, deviations), buckets.sizes.cumsum(0)
    return list(_clip(torch.cat(list(tensors), dim=1), limits, ends).split(segments, dim=1))


@kernel
def _sums_of_shifted(x: Tensor, first: Tensor) -> Tensor:
    return torch.stack([part.sum(-1) for part in shifted(x, first.unsqueeze(-1))])


@kernel
def _limits_of(sums: Tensor, sizes: Tensor, deviations: float) -> Tensor:
    total, squares = sums.unbind(0)
    return _limits(deviation(total, squares, sizes), deviations)


@kernel
def _clip(x: Tensor, limits: Tensor, ends: Tensor) -> Tensor:
    index = torch.arange(x.shape[1], device=x.device)
    limit = limits[:, torch.bucketize(index, ends, right=True)]
    return x.clamp(-limit, limit)


def _limits(sigma: Tensor, deviations: float) -> Tensor:
    return torch.where(sigma == 0, torch.inf, deviations * sigma).float()


@kernel
def _signs_and_sums(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return words `[w, groups, row]`, sums `[w, groups, 32]` of groups `[w, groups, 32, row]`."""
    up = x >= 0
    (word,) = to_words(up.to(torch.int32), 2)
    wide = x.double()
    return (
        word,
        torch.where(up, wide, 0).sum(-1),
        torch.where(up, 0, wide).sum(-1),
        up.sum(-1, dtype=torch.float64),
    )
