"""Orthonormal factors of batches of matrices, and random choices among singular values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_DEPENDENT = (
    1e-6  # a column with less of its norm outside of those before it is their rounding noise
)
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
