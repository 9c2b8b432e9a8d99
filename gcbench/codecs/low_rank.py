"""Orthonormal factors of batches of matrices, and random choices among singular values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_MANY = 8  # columns, of which Cholesky's decomposition is faster than one at a time
_DEPENDENT = 1e-4  # a column with less of its norm outside of the others is left to Gram-Schmidt


def orthogonalize(p: Tensor) -> Tensor:
    """Return the columns of each matrix `[..., n, r]` made orthonormal by Gram-Schmidt.

    On a CPU, those of well-conditioned matrices with many columns come from Cholesky's
    decomposition of P^T P, in float64 and twice, which gives the same columns up to rounding.
    """
    if not p.is_cpu or not _MANY < p.shape[-1] <= p.shape[-2]:
        return _gram_schmidt(p)
    out, good = _by_cholesky(p.double())
    out = out.to(p.dtype)
    if not good.all():
        out[~good] = _gram_schmidt(p[~good])
    return out


def _by_cholesky(p: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns of P made orthonormal, and whether each matrix was well-conditioned."""
    q = p / torch.linalg.vector_norm(p, dim=-2, keepdim=True)
    good = torch.ones(p.shape[:-2], dtype=torch.bool)
    for _ in range(2):
        factor, info = torch.linalg.cholesky_ex(q.mT @ q)
        left = factor.diagonal(dim1=-2, dim2=-1).amin(-1)
        good &= (info == 0) & (left > _DEPENDENT)  # NaN is not greater
        q = torch.linalg.solve_triangular(factor, q.mT, upper=False).mT
    return q, good


def _gram_schmidt(p: Tensor) -> Tensor:
    """Return the columns of each matrix `[..., n, r]` made orthonormal one by one.

    A zero column stays zero.

    Each column is projected twice ("twice is enough", Kahan and Parlett): after one pass, the
    remainder of a nearly dependent column is rounding noise that is not orthogonal to the others.
    If the second pass removes half of its norm or more, the remainder was only such noise (for
    example of two constant columns): the column is dependent, and becomes zero. Scaling by the
    largest entry keeps the squares of tiny gradients from underflowing.
    """
    largest = p.abs().amax(-2, keepdim=True)
    columns: list[Tensor] = []
    for column in (p / torch.where(largest > 0, largest, 1)).unbind(-1):
        column = _unit(column)
        if columns:
            before = torch.stack(columns, dim=-2)
            column = _unit(column - _project(before, column))
            column = column - _project(before, column)
            left = torch.linalg.vector_norm(column, dim=-1, keepdim=True)
            column = _unit(torch.where(left > 0.5, column, 0))
        columns.append(column)
    return torch.stack(columns, dim=-1)


def _project(basis: Tensor, x: Tensor) -> Tensor:
    """Return the projection of x onto the rows of the basis `[..., k, n]`."""
    return (basis.mT @ (basis @ x.unsqueeze(-1))).squeeze(-1)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1, eps=1e-30)


def svd(m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U `[w, ..., n, k]`, s `[w, ..., k]` and V^T `[w, ..., k, m]` of each matrix.

    k = min(n, m), and s is descending. Each row is decomposed by itself: in a batch, rounding
    depends on how a matrix is aligned in memory, and so would differ between virtual and real
    workers. Where a matrix is not finite, s is NaN; LAPACK would raise, and the run would end
    without saying why.
    """
    finite = m.isfinite().all(-1).all(-1)[..., None]
    rows = [
        torch.linalg.svd(row, full_matrices=False) for row in torch.where(finite[..., None], m, 0)
    ]
    u, s, vt = (torch.stack(factors) for factors in zip(*rows, strict=True))
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
