"""Thin orthonormal factors of batches of matrices."""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonalise(p: Tensor) -> Tensor:
    """Columns of `[..., n, r]` made orthonormal by Gram-Schmidt, each matrix on its own; a zero column stays zero.

    Each column is projected twice ("twice is enough", Kahan and Parlett): after one pass the remainder of a nearly
    dependent column is rounding noise that points back at the others. What the second pass all but removes was that noise
    alone (of two flat columns, say): the column is dependent, and becomes zero. Scaling by the largest entry keeps tiny
    gradients from underflowing in the squares.
    """
    columns: list[Tensor] = []
    for column in p.unbind(-1):
        column = _unit(column)
        if columns:
            before = torch.stack(columns, dim=-1)
            column = _unit(column - _project(before, column))
            column = column - _project(before, column)
            left = torch.linalg.vector_norm(column, dim=-1, keepdim=True)
            column = _unit(torch.where(left > 0.5, column, 0))
        columns.append(column)
    return torch.stack(columns, dim=-1)


def _project(basis: Tensor, x: Tensor) -> Tensor:
    return (basis @ (basis.mT @ x.unsqueeze(-1))).squeeze(-1)


def _unit(x: Tensor) -> Tensor:
    largest = x.abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(norm > 0, norm, 1)
