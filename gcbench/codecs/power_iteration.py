"""A step of power iteration on many matrices, by PyTorch's operations or in C++.

C++, compiled for a CPU, reads memory once.

Matrices M are `[w, n, m]`. Their factors are transposed, P `[r, n]` and Q `[r, m]`, since products
with thin factors are as fast as memory only where their long side is contiguous, and lie end to
end: `[w, all]` of each worker, `[1, all]` where all workers have the same. The two ways are equal
up to rounding, and each is to the bit however many workers share a process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import CDLL, Array, c_int64, c_void_p
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gcbench.codecs import low_rank
from gcbench.codecs.native import load_native

Matrices = Sequence[Tensor]

_FUNCTIONS = (  # n*: how many matrices, and their shapes
    ("restart", "n*" + "***"),
    ("orthogonalize", "n*" + "*"),
    ("add_times", "n*" + "n**f***ni"),
    ("transposed_times", "n*" + "n***ni"),
    ("product_and_rest", "n*" + "n***n**i"),
)


class Shape(NamedTuple):
    n: int
    m: int
    r: int


Shapes = tuple[Shape, ...]


def ps_of(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return the factors P of all matrices, `[w, r, n]` each, as views."""
    parts = flat.split([r * n for n, _, r in shapes], dim=1)
    return [part.view(-1, s.r, s.n) for part, s in zip(parts, shapes, strict=True)]


def qs_of(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return the factors Q of all matrices, `[w, r, m]` each, as views."""
    parts = flat.split([r * m for _, m, r in shapes], dim=1)
    return [part.view(-1, s.r, s.m) for part, s in zip(parts, shapes, strict=True)]


def restart(qs: Sequence[Tensor], fresh: Tensor, shapes: Shapes) -> Tensor:
    """Return the columns scaled to a largest entry of 1.

    Columns that are zero, or not finite, are replaced by `fresh` ones.
    """
    library, out = _native(qs), torch.empty_like(fresh, dtype=qs[0].dtype)
    if library is not None:
        library.restart(*_c_shapes(shapes), _addresses(qs), fresh.data_ptr(), out.data_ptr())
        return out
    for q, new, target in zip(qs, qs_of(fresh, shapes), qs_of(out, shapes), strict=True):
        largest = q.abs().amax(-1, keepdim=True)
        torch.where((largest > 0) & (largest < torch.inf), q / largest, new, out=target)
    return out


def add_times(
    gs: Matrices, es: Matrices, alpha: float, q: Tensor, shapes: Shapes
) -> tuple[list[Tensor], Tensor]:
    """Return M = G + alpha E, and P = M Q."""
    library = _native(gs, es)
    if library is None:
        ms = [torch.add(g, e, alpha=alpha) for g, e in zip(gs, es, strict=True)]
        return ms, times(ms, q, shapes)
    ms = [torch.empty_like(g) for g in gs]
    p = _empty_factors(ms, sum(s.r * s.n for s in shapes))
    inputs = (_addresses(gs), _addresses(es), alpha, q.data_ptr())
    outputs = (_addresses(ms), p.data_ptr(), p.shape[1])
    library.add_times(*_c_shapes(shapes), len(p), *inputs, *outputs, torch.get_num_threads())
    return ms, p


def times(ms: Matrices, q: Tensor, shapes: Shapes) -> Tensor:
    """Return P = M Q."""
    p = _empty_factors(ms, sum(s.r * s.n for s in shapes))
    for m, factor, target in zip(ms, qs_of(q, shapes), ps_of(p, shapes), strict=True):
        for row, out in zip(m, target, strict=True):
            torch.mm(factor[0], row.mT, out=out)
    return p


def orthogonalize(p: Tensor, shapes: Shapes) -> Tensor:
    """Return the columns of `[1, all]` made orthonormal, those of each matrix on its own."""
    library, out = _native([p]), p.clone()
    if library is not None:
        library.orthogonalize(*_c_shapes(shapes), out.data_ptr())
        return out
    ps = ps_of(out, shapes)
    for batch in _batches(shapes):
        padded = pad_sequence([ps[i][0].mT for i in batch], batch_first=True)
        for i, orthonormal in zip(batch, low_rank.orthogonalize(padded).mT, strict=True):
            ps[i][0] = orthonormal[:, : shapes[i].n]
    return out


def transposed_times(ms: Matrices, p: Tensor, shapes: Shapes) -> Tensor:
    """Return Q = M^T P."""
    library, q = _native(ms), _empty_factors(ms, sum(s.r * s.m for s in shapes))
    if library is not None:
        factors = p.data_ptr(), q.data_ptr(), q.shape[1]
        library.transposed_times(
            *_c_shapes(shapes), len(q), _addresses(ms), *factors, torch.get_num_threads()
        )
        return q
    for m, factor, target in zip(ms, ps_of(p, shapes), qs_of(q, shapes), strict=True):
        for row, out in zip(m, target, strict=True):
            torch.mm(factor[0], row, out=out)
    return q


def product(p: Tensor, q: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return P Q^T of all matrices."""
    products = [q.new_empty(len(q), s.n, s.m) for s in shapes]
    for left, rights, target in zip(ps_of(p, shapes), qs_of(q, shapes), products, strict=True):
        for right, out in zip(rights, target, strict=True):
            torch.mm(left[0].mT, right, out=out)
    return products


def product_and_rest(
    p: Tensor, q: Tensor, worker_q: Tensor, ms: Matrices, shapes: Shapes
) -> list[Tensor]:
    """Return P Q^T, and replace every worker's M by M - P Q'^T with its row Q' of `worker_q`."""
    library = _native(ms)
    if library is None:
        for m, left, rights in zip(ms, ps_of(p, shapes), qs_of(worker_q, shapes), strict=True):
            for row, right in zip(m, rights.expand(len(m), -1, -1), strict=True):
                row.addmm_(left[0].mT, right, alpha=-1)
        return product(p, q, shapes)
    updates = [torch.empty_like(m[:1]) for m in ms]
    worker_stride = worker_q.shape[1] if len(worker_q) > 1 else 0
    factors = p.data_ptr(), q.data_ptr(), worker_q.data_ptr(), worker_stride
    outputs = _addresses(ms), _addresses(updates)
    library.product_and_rest(
        *_c_shapes(shapes), len(ms[0]), *factors, *outputs, torch.get_num_threads()
    )
    return updates


def _empty_factors(ms: Matrices, size: int) -> Tensor:
    return ms[0].new_empty(len(ms[0]), size)


def _batches(shapes: Shapes) -> Iterator[list[int]]:
    """Yield which P to pad with zeros and take together.

    These are as many as leave no more than four times their values.
    """
    batch: list[int] = []
    values = 0
    for i in sorted(range(len(shapes)), key=lambda i: (shapes[i].r, shapes[i].n), reverse=True):
        if batch:
            largest, padded = shapes[batch[0]], (len(batch) + 1) * shapes[batch[0]].n
            if shapes[i].r != largest.r or padded > 4 * (values + shapes[i].n):
                yield batch
                batch, values = [], 0
        batch.append(i)
        values += shapes[i].n
    yield batch


def _native(*matrices: Matrices) -> CDLL | None:
    assert all(m.is_contiguous() for ms in matrices for m in ms)
    return load_native("low_rank", _FUNCTIONS, matrices[0][0])


def _addresses(tensors: Sequence[Tensor]) -> Array[c_void_p]:
    return (c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])


@lru_cache(maxsize=64)  # buckets
def _c_shapes(shapes: Shapes) -> tuple[int, Array[c_int64]]:
    return len(shapes), (c_int64 * (3 * len(shapes)))(*[size for shape in shapes for size in shape])
