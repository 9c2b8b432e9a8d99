"""Factors of matrices: their columns, orthonormal batches, and chosen singular values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# A column with less of its norm outside of those before it is their rounding noise.
_DEPENDENT = 1e-6
_SHIFT = 1e-13  # what is added to squared norms of 1, so that dependent columns have a factor, too


def orthogonalize(p: Tensor) -> Tensor:
    """Return the columns of each matrix `[..., n, r]` made orthonormal, as Gram-Schmidt does.

    A column that is zero, or dependent on those before it, becomes zero.

    Q = P L^-T with L L^T = P^T P (Cholesky) spans the same space column by column, in a few
    operations for all columns. It is computed in float64 and twice: the first Q of nearly dependent
    columns is not orthonormal, but so nearly that the second is. Dividing by the norms first keeps
    the squares of tiny gradients from underflowing.
    """
    q = p.double()
    q = q / torch.linalg.vector_norm(q, dim=-2, keepdim=True).clamp_min(1e-60)
    left = _cholesky(q).diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    q = q * ~(left <= _DEPENDENT)  # NaN stays
    for _ in range(2):
        q = torch.linalg.solve_triangular(_cholesky(q), q.mT, upper=False).mT
    return q.to(p.dtype)


def _cholesky(q: Tensor) -> Tensor:
    gram = q.mT @ q
    gram.diagonal(dim1=-2, dim2=-1).add_(_SHIFT)
    # Without a check, for which the host would wait.
    return torch.linalg.cholesky_ex(gram).L


def svd(m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U `[..., n, k]`, s `[..., k]` and V^T `[..., k, m]` of each matrix `[..., n, m]`.

    k = min(n, m), and s is descending. Each matrix is decomposed by itself: in a batch, rounding
    depends on how a matrix is aligned in memory, and so would differ between virtual and real
    workers. Where a matrix is not finite, s is NaN; LAPACK would raise, and the run would end
    without saying why.
    """
    finite = m.isfinite().all(-1).all(-1)[..., None]
    each = torch.where(finite[..., None], m, 0).flatten(0, -3)
    found = [torch.linalg.svd(matrix, full_matrices=False) for matrix in each]
    u, s, vt = (
        torch.stack(factors).unflatten(0, m.shape[:-2]) for factors in zip(*found, strict=True)
    )
    return u, torch.where(finite, s, torch.nan), vt


def conditional_bernoulli(p: Tensor, count: Tensor, most: int, uniform: Tensor) -> Tensor:
    """Return coins `[k, ...]` that are heads with probability p, given that `count` of them are.

    The distribution is that of tossing all coins until exactly `count` `[...]`, at most `most`, are
    heads. One pass draws from it: with f_ij the probability of j heads among the coins i to k, coin
    i is heads with probability p_i f_(i+1)(j-1) / f_ij if j more are wanted. If `count` heads are
    impossible (too many p are zero), the first coins are taken.
    """
    wanted = count.expand(p.shape[1:]).unsqueeze(-1)
    none_left = F.pad(p.new_ones(*p.shape[1:], 1), (0, most))
    chances = [none_left]
    for q in p.flip(0).unsqueeze(-1):
        chances.append((1 - q) * chances[-1] + q * F.pad(chances[-1][..., :-1], (1, 0)))
    kept = []
    for i, (q, u) in enumerate(zip(p.unsqueeze(-1), uniform.unsqueeze(-1), strict=True), start=1):
        now = chances[-i].gather(-1, wanted)
        then = q * chances[-i - 1].gather(-1, (wanted - 1).clamp_min(0))
        heads = (wanted > 0) & (u < torch.where(now > 0, then / now, 1))
        wanted = wanted - heads.long()
        kept.append(heads.squeeze(-1))
    return torch.stack(kept)


class Shape(NamedTuple):
    n: int
    m: int
    r: int


Shapes = tuple[Shape, ...]


class Columns(NamedTuple):
    """The columns of all factors Q."""

    lengths: Tensor
    of_values: Tensor  # for each value which column it is in
    ranks: Tensor  # how many columns each matrix has
    matrices: Tensor  # for each column which matrix it is in
    scales: Tensor  # for each column sqrt(n / m) of its matrix, float64


@lru_cache(maxsize=64)
def columns_of(shapes: Shapes, device: torch.device) -> Columns:
    ranks = [s.r for s in shapes]
    lengths, scales = (
        np.repeat(x, ranks) for x in ([s.m for s in shapes], [(s.n / s.m) ** 0.5 for s in shapes])
    )
    columns, matrices = np.arange(len(lengths)).repeat(lengths), np.arange(len(ranks)).repeat(ranks)
    tables = lengths, columns, ranks, matrices, scales
    return Columns(*[torch.tensor(table, device=device) for table in tables])


def reduce_parts(x: Tensor, how: str, lengths: Tensor) -> Tensor:
    # `unsafe` skips a check of the lengths, for which the host would wait.
    return torch.segment_reduce(x, how, lengths=lengths, unsafe=True)


class Batch(NamedTuple):
    """A batch of factors P, padded with zeros to one size and orthonormalized by one call."""

    positions: Tensor  # [k, r, n]: places in the concatenated P; padding is past its end
    chosen: Tensor  # which of these positions, flattened, are not padding
    inside: Tensor  # the positions that are not padding


@lru_cache(maxsize=64)
def batches_of(shapes: Shapes, device: torch.device) -> list[Batch]:
    """Return batches that padding makes at most four times as large as their factors."""
    starts = list(accumulate([s.r * s.n for s in shapes], initial=0))
    batches = []
    for batch in _similar(shapes):
        size = len(batch), max(shapes[i].r for i in batch), shapes[batch[0]].n
        positions = np.full(size, starts[-1])
        for row, i in zip(positions, batch, strict=True):
            r, n = shapes[i].r, shapes[i].n
            row[:r, :n] = np.arange(starts[i], starts[i + 1]).reshape(r, n)
        chosen = np.flatnonzero(positions < starts[-1])
        tables = positions, chosen, positions.flat[chosen]
        batches.append(Batch(*[torch.tensor(table, device=device) for table in tables]))
    return batches


def _similar(shapes: Shapes) -> Iterator[list[int]]:
    """Yield the indices of the factors P in each batch, the longest first."""
    batch: list[int] = []
    most = values = 0
    for i in sorted(range(len(shapes)), key=lambda i: shapes[i].n, reverse=True):
        most, values = max(most, shapes[i].r), values + shapes[i].r * shapes[i].n
        if batch and (len(batch) + 1) * most * shapes[batch[0]].n > 4 * values:
            yield batch
            batch, most, values = [], shapes[i].r, shapes[i].r * shapes[i].n
        batch.append(i)
    yield batch
