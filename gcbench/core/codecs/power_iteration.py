"""A step of power iteration on many matrices, by PyTorch's operations or, on a CPU, in C++.

The C++ reads memory once.

Matrices M are `[w, n, m]`; on a GPU, consecutive matrices of the same shape form a stack
`[k, w, n, m]`, for which one product is enough. Factors are stored transposed, P `[r, n]` and Q
`[r, m]`, since products with thin factors are as fast as memory only if their long side is
contiguous. The factors of all matrices are concatenated: `[w, all]`, or `[1, all]` if they are the
same on all workers. The two implementations agree up to rounding, and each gives the same bits
however many workers share a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, Array, c_int64, c_void_p
from functools import lru_cache
from itertools import groupby
from math import prod

import torch
from torch import Tensor

from gcbench.core.codecs import low_rank, products
from gcbench.core.codecs.launches import runs_on
from gcbench.core.codecs.low_rank import Shape, Shapes, batches_of, columns_of, reduce_parts
from gcbench.core.codecs.native import address, addresses, is_native, load_native

Matrices = Sequence[Tensor]
Stacks = Sequence[Tensor]

# On a CPU a stack of large matrices would save nothing, and be so large a block of memory that the
# system allocates it anew in every step, page by page.
STACKED_ON = {"cuda"}
_SMALL = 1 << 14  # values of a matrix that is stacked everywhere
# With more columns, a product of matrices is faster than our loops, which take four at a time.
_FEW = 8


def stack(ms: Matrices, shapes: Shapes) -> list[Tensor]:
    """Return matrices `[w, n, m]` as stacks.

    A matrix that is a stack by itself is copied only if it is not contiguous.
    """
    remaining = iter(ms)
    stacks = []
    for _, count in _stack_sizes(shapes, ms[0].device):
        run = [next(remaining) for _ in range(count)]
        stacks.append(torch.stack(run) if count > 1 else run[0].contiguous().unsqueeze(0))
    return stacks


def unstack(stacks: Stacks) -> list[Tensor]:
    """Return the matrices `[w, n, m]` of stacks as views."""
    return [m for stacked in stacks for m in stacked.unbind()]


def ps_of(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return the factors P of all matrices, `[w, r, n]` each, as views."""
    return [p for ps in _stacked_ps(flat, shapes) for p in ps.unbind(1)]


def qs_of(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return the factors Q of all matrices, `[w, r, m]` each, as views."""
    return [q for qs in _stacked_qs(flat, shapes) for q in qs.unbind(1)]


def _stacked_ps(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return the factors P by stack, `[w, k, r, n]` each, as views."""
    return _split(flat, [(k, s.r, s.n) for s, k in _stack_sizes(shapes, flat.device)])


def _stacked_qs(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return the factors Q by stack, `[w, k, r, m]` each, as views."""
    return _split(flat, [(k, s.r, s.m) for s, k in _stack_sizes(shapes, flat.device)])


def _split(flat: Tensor, sizes: Sequence[tuple[int, int, int]]) -> list[Tensor]:
    parts = flat.split([prod(size) for size in sizes], dim=1)
    return [part.view(-1, *size) for part, size in zip(parts, sizes, strict=True)]


def restart(qs: Sequence[Tensor], fresh: Tensor, shapes: Shapes) -> Tensor:
    """Return the columns of all Q, `[1, all]`, each scaled to a largest magnitude of 1.

    Columns that are zero, or not finite, are replaced by those of `fresh`.
    """
    library, out = _native(shapes, qs), torch.empty_like(fresh, dtype=qs[0].dtype)
    if library is not None:
        size = _size_q(shapes)
        places = addresses([q.view(1, -1) for q in qs], 1, [s.r * s.m for s in shapes])
        of_fresh, of_out = (address(x, torch.float32, size) for x in (fresh, out))
        library.restart(*_c_shapes(shapes), places, of_fresh, of_out)
        return out
    if _is_fused(shapes, out.device):
        products.restart(qs, fresh, out, shapes)
        return out
    q = torch.cat([q.flatten() for q in qs])
    columns = columns_of(shapes, q.device)
    largest = reduce_parts(q.abs(), "max", columns.lengths)[columns.of_values]
    torch.where((largest > 0) & (largest < torch.inf), q / largest, fresh[0], out=out[0])
    return out


def add(gs: Matrices, es: Matrices, alpha: float, shapes: Shapes) -> list[Tensor]:
    """Return stacks of M = G + alpha E."""
    return stack(torch._foreach_add(list(gs), list(es), alpha=alpha), shapes)


def add_times(
    gs: Matrices, es: Matrices, alpha: float, q: Tensor, shapes: Shapes
) -> tuple[list[Tensor], Tensor]:
    """Return stacks of M = G + alpha E, and P = M Q.

    Each worker's matrix is contiguous in G and E, but need not be next to another worker's.
    """
    library, is_fused = _native(shapes, gs, es), _is_fused(shapes, q.device)
    if library is None and not is_fused:
        stacks = add(gs, es, alpha, shapes)
        return stacks, times(stacks, q, shapes)
    workers = len(gs[0])
    sizes = _stack_sizes(shapes, gs[0].device)
    stacks = [gs[0].new_empty(count, workers, s.n, s.m) for s, count in sizes]
    ms = unstack(stacks)
    p = _empty_factors(stacks, _size_p(shapes))
    if library is None:
        products.times(gs, q, p, shapes, residual=es, alpha=alpha, sums=ms)
        return stacks, p
    of_q = address(q, torch.float32, _size_q(shapes))
    inputs = (*_places(gs, shapes), *_places(es, shapes), alpha, of_q)
    outputs = (_of_all(ms, shapes, workers), *_of_factors(p, workers, _size_p(shapes)))
    library.add_times(*_c_shapes(shapes), workers, *inputs, *outputs, torch.get_num_threads())
    return stacks, p


def times(stacks: Stacks, q: Tensor, shapes: Shapes) -> Tensor:
    """Return P = M Q."""
    p = _empty_factors(stacks, _size_p(shapes))
    if _is_fused(shapes, p.device):
        products.times(unstack(stacks), q, p, shapes)
        return p
    for ms, (factor,), outs in zip(
        stacks, _stacked_qs(q, shapes), _stacked_ps(p, shapes), strict=True
    ):
        for m, out in zip(ms.unbind(1), outs, strict=True):
            torch.bmm(factor, m.mT, out=out)
    return p


def orthogonalize(p: Tensor, shapes: Shapes) -> Tensor:
    """Return P `[1, all]` with the columns of each matrix made orthonormal."""
    library, out = _native(shapes, [p]), p.clone()
    if library is not None:
        library.orthogonalize(*_c_shapes(shapes), address(out, torch.float32, _size_p(shapes)))
        return out
    if _is_fused(shapes, p.device):
        products.orthonormalize(out, shapes)
        return out
    padded = torch.cat([p[0], p.new_zeros(1)])
    for batch in batches_of(shapes, p.device):
        orthonormal = low_rank.orthogonalize(padded[batch.positions].mT).mT
        out[0].index_copy_(0, batch.inside, orthonormal.flatten()[batch.chosen])
    return out


def transposed_times(stacks: Stacks, p: Tensor, shapes: Shapes) -> Tensor:
    """Return Q = M^T P."""
    library, q = _native(shapes, stacks), _empty_factors(stacks, _size_q(shapes))
    if library is not None:
        of_p = address(p, torch.float32, _size_p(shapes))
        library.transposed_times(
            *(*_c_shapes(shapes), len(q), _of_all(unstack(stacks), shapes, len(q)), of_p),
            *(*_of_factors(q, len(q), _size_q(shapes)), torch.get_num_threads()),
        )
        return q
    if _is_fused(shapes, q.device):
        products.times(unstack(stacks), p, q, shapes, transposed=True)
        return q
    for ms, (factor,), outs in zip(
        stacks, _stacked_ps(p, shapes), _stacked_qs(q, shapes), strict=True
    ):
        for m, out in zip(ms.unbind(1), outs, strict=True):
            torch.bmm(factor, m, out=out)
    return q


def product(p: Tensor, q: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return stacks of P Q^T, of which either may be each worker's own."""
    if _is_fused(shapes, p.device):
        workers, sizes = max(len(p), len(q)), _stack_sizes(shapes, p.device)
        stacks = [p.new_empty(count, workers, s.n, s.m) for s, count in sizes]
        products.outer(p, q, unstack(stacks), shapes)
        return stacks
    stacks = []
    for lefts, rights in zip(_stacked_ps(p, shapes), _stacked_qs(q, shapes), strict=True):
        rows = [torch.bmm(left.mT, right) for left, right in _pair(lefts, rights)]
        stacks.append(torch.stack(rows, dim=1) if len(rows) > 1 else rows[0].unsqueeze(1))
    return stacks


def product_and_rest(
    p: Tensor, q: Tensor, worker_p: Tensor, worker_q: Tensor, stacks: Stacks, shapes: Shapes
) -> list[Tensor]:
    """Return stacks of P Q^T, and replace each worker's M by M - P' Q'^T.

    P' and Q' are the worker's rows of `worker_p` and `worker_q`, or their only row.
    """
    library = _native(shapes, stacks)
    if _is_fused(shapes, p.device):
        products.outer(worker_p, worker_q, unstack(stacks), shapes, subtracts=True)
        return product(p, q, shapes)
    if library is None:
        own = zip(_stacked_ps(worker_p, shapes), _stacked_qs(worker_q, shapes), strict=True)
        for ms, (lefts, rights) in zip(stacks, own, strict=True):
            pairs = _pair(lefts, rights, ms.shape[1])
            for m, (left, right) in zip(ms.unbind(1), pairs, strict=True):
                m.baddbmm_(left.mT, right, alpha=-1)
        return product(p, q, shapes)
    updates = [torch.empty_like(ms[:, :1]) for ms in stacks]
    workers, sizes = stacks[0].shape[1], (_size_p(shapes), _size_q(shapes))
    own_factors = []
    for x, size in zip((worker_p, worker_q), sizes, strict=True):
        place, step = _of_factors(x, workers if len(x) > 1 else 1, size)
        own_factors += [place, (len(x) > 1) * step]
    library.product_and_rest(
        *(*_c_shapes(shapes), workers),
        *(address(x, torch.float32, size) for x, size in zip((p, q), sizes, strict=True)),
        *own_factors,
        *(_of_all(unstack(stacks), shapes, workers), _of_all(unstack(updates), shapes, 1)),
        torch.get_num_threads(),
    )
    return updates


def _pair(lefts: Tensor, rights: Tensor, rows: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Return the factors of each worker, at least `rows`, where either may have a single row."""
    rows = max(len(lefts), len(rights), rows)
    return list(zip(lefts.expand(rows, -1, -1, -1), rights.expand(rows, -1, -1, -1), strict=True))


def _empty_factors(stacks: Stacks, size: int) -> Tensor:
    return stacks[0].new_empty(stacks[0].shape[1], size)


def _stack_sizes(shapes: Shapes, device: torch.device) -> tuple[tuple[Shape, int], ...]:
    return _runs(shapes, device.type in STACKED_ON and not _is_fused(shapes, device))


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _runs(shapes: Shapes, stacked: bool) -> tuple[tuple[Shape, int], ...]:
    """Return each stack's shape, and how many matrices it has."""
    runs: list[tuple[Shape, int]] = []
    for shape, run in groupby(shapes):
        count = len(list(run))
        together = stacked or shape.n * shape.m <= _SMALL
        runs += [(shape, count)] if together else [(shape, 1)] * count
    return tuple(runs)


def normalize(q: Tensor, noise: float, shapes: Shapes) -> Tensor:
    """Return factors Q `[1, all]` with columns of norm sqrt(n / m).

    Those whose largest value is at most `noise` times that of their matrix become zero.
    """
    columns = columns_of(shapes, q.device)
    largest = reduce_parts(q[0].abs(), "max", columns.lengths)
    is_noise = largest <= noise * reduce_parts(largest, "max", columns.ranks)[columns.matrices]
    # Dividing by the largest value first keeps the squares of tiny columns from underflowing.
    unit = q[0].double() / torch.where(is_noise, 1, largest)[columns.of_values]
    norms = reduce_parts(unit.square(), "sum", columns.lengths).sqrt()
    scales = torch.where(is_noise, 0, columns.scales / norms)
    return (unit * scales[columns.of_values]).to(q.dtype).unsqueeze(0)


def _native(shapes: Shapes, *matrices: Matrices) -> CDLL | None:
    if any(s.r > _FEW for s in shapes):
        return None
    return load_native() if is_native(matrices[0][0]) else None


def _is_fused(shapes: Shapes, device: torch.device) -> bool:
    """Return whether hand-written Triton takes these matrices, for which it needs no stacks."""
    return runs_on(device) and all(s.r <= _FEW for s in shapes)


def _size_p(shapes: Shapes) -> int:
    return sum(s.r * s.n for s in shapes)


def _size_q(shapes: Shapes) -> int:
    return sum(s.r * s.m for s in shapes)


def _of_all(ms: Matrices, shapes: Shapes, workers: int) -> Array[c_void_p] | None:
    """Return the addresses of matrices `[workers, n, m]`."""
    sizes = [workers * s.n * s.m for s in shapes]
    return addresses([m.view(1, -1) for m in ms], 1, sizes)


def _of_factors(x: Tensor, workers: int, size: int) -> tuple[int | None, int]:
    """Return the address of factors `[workers, size]`, and the step from worker to worker."""
    return address(x, torch.float32, workers * size), size


def _places(ms: Matrices, shapes: Shapes) -> tuple[Array[c_void_p] | None, Array[c_int64]]:
    """Return the addresses of matrices `[w, n, m]`, and the step from worker to worker in each."""
    steps = (c_int64 * len(ms))(*[m.stride(0) for m in ms])
    return addresses([m[0].view(1, -1) for m in ms], 1, [s.n * s.m for s in shapes]), steps


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _c_shapes(shapes: Shapes) -> tuple[int, Array[c_int64]]:
    return len(shapes), (c_int64 * (3 * len(shapes)))(*[size for shape in shapes for size in shape])
