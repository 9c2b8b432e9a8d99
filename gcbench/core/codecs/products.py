"""Products of many matrices and thin factors on a GPU, by hand-written Triton.

A launch takes all matrices where they lie, of whatever shapes. Factors are those of
`power_iteration.py`, with up to 16 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcbench.core.codecs.launches import launch, pointers
from gcbench.core.codecs.low_rank import Shapes

_LONG, _SHORT = 128, 32  # the sides of tiles of M
_RANK = 16  # as many columns as a product of tiles needs


def times(
    ms: Sequence[Tensor],
    factor: Tensor,
    out: Tensor,
    shapes: Shapes,
    *,
    transposed: bool = False,
    residual: Sequence[Tensor] = (),
    alpha: float = 1,
    sums: Sequence[Tensor] = (),
) -> None:
    """Write P = M Q of all matrices `[w, n, m]`, or Q = M^T P if they are `transposed`.

    With a `residual`, M is `ms` + alpha residual, and is written to `sums`.
    """
    tables = _tables(shapes, factor.device)
    tiles = tables.columns if transposed else tables.rows
    launch(
        "multiply",
        (len(tiles), len(out)),
        *(_places(part) if part else None for part in (ms, residual, sums)),
        *(factor, out, tables.shapes, tiles, len(ms), out.stride(0)),
        reads=[*ms, *residual, factor],
        writes=[*sums, out],
        ALPHA=alpha,
        BACK=transposed,
        ROWS=_LONG if transposed else _SHORT,
        COLUMNS=_SHORT if transposed else _LONG,
        RANK=_RANK,
    )


def outer(
    p: Tensor, q: Tensor, to: Sequence[Tensor], shapes: Shapes, subtracts: bool = False
) -> None:
    """Write P Q^T to matrices `[w, n, m]`, or subtract it; either may be each worker's own."""
    tables = _tables(shapes, p.device)
    steps = (x.stride(0) if len(x) > 1 else 0 for x in (p, q))
    launch(
        "multiply_out",
        (len(tables.tiles), len(to[0])),
        *(p, q, _places(to), tables.shapes, tables.tiles, len(to), *steps),
        reads=[p, q, *(to if subtracts else ())],
        writes=to,
        SUBTRACTS=subtracts,
        ROWS=_SHORT,
        COLUMNS=_LONG,
        RANK=_RANK,
    )


def orthonormalize(p: Tensor, shapes: Shapes) -> None:
    """Make the columns of each P of `[1, all]` orthonormal."""
    of_shapes = _tables(shapes, p.device).shapes
    launch("orthonormalize", (len(shapes), 1), p, of_shapes, reads=[p], writes=[p], BLOCK=1024)


def restart(qs: Sequence[Tensor], fresh: Tensor, out: Tensor, shapes: Shapes) -> None:
    """Write what `power_iteration.restart` returns."""
    launch(
        "restart_columns",
        (len(shapes), max(s.r for s in shapes)),
        *(_places(qs), fresh, out, _tables(shapes, out.device).shapes),
        reads=[*qs, fresh],
        writes=[out],
        BLOCK=1024,
    )


def _places(ms: Sequence[Tensor]) -> Tensor:
    return pointers([m.flatten(1) for m in ms])


class _Tables(NamedTuple):
    shapes: Tensor  # [matrices, 5]: n, m, r, and where P and Q begin
    rows: Tensor  # [tiles, 3]: a matrix, a row, and column 0
    columns: Tensor  # the same of columns
    tiles: Tensor  # the same of tiles


@lru_cache(maxsize=64)  # one entry per bucket of DDP
def _tables(shapes: Shapes, device: torch.device) -> _Tables:
    n, m, r = np.array(shapes).T
    starts = [(x * r).cumsum() - x * r for x in (n, m)]
    rows, columns = ([np.arange(0, size, _SHORT) for size in sizes] for sizes in (n, m))
    far = [np.arange(0, size, _LONG) for size in m]
    zero = np.zeros(1, dtype=np.int64)
    tiles = [
        np.concatenate(
            [
                np.stack([x.flatten() for x in np.meshgrid([k], a, b)], axis=1)
                for k, (a, b) in enumerate(zip(first, second, strict=True))
            ]
        )
        for first, second in (
            (rows, [zero] * len(n)),
            ([zero] * len(n), columns),
            (rows, far),
        )
    ]
    each = [np.stack([n, m, r, *starts], axis=1), *tiles]
    return _Tables(*[torch.tensor(x, device=device) for x in each])
