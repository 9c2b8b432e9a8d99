"""Whether values are finite, without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gcbench.core.codecs import launches


def not_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Return for each worker, `[w]`, whether its row of any tensor `[w, ...]` is not finite."""
    wholes = _wholes([x for x in tensors if x.numel()])
    by_worker = list(zip(*wholes, strict=True))
    rows = [row for worker in by_worker for row in worker]
    if rows[0].device.type == "cpu":
        # A sum is faster than extremes, and finite only where all its terms are.
        if torch.stack([row.sum() for row in rows]).isfinite().all():
            return torch.zeros(len(by_worker), dtype=torch.bool)
        # A sum of finite values may overflow; extremes are exact, and fastest by row.
        extremes = [torch.stack(row.aminmax()).abs().amax() for row in rows]
    else:
        extremes = list(torch._foreach_norm(rows, torch.inf))  # reads all of them in one kernel
    each = torch.stack(extremes).view(len(by_worker), -1)
    return (each * 0).any(1)  # NaN, which counts as true, where a value is not finite


def replace_each(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Replace values `[1, n]` on a GPU; return, `[1]`, whether one was, or is now, not finite."""
    return launches.replace_each(tensors, others).any(0, keepdim=True)


def _wholes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors `[w, ...]`, with one for all that are the parts of its rows."""
    by_whole: dict[int, list[Tensor]] = {}
    for x in tensors:
        by_whole.setdefault(id(x if x._base is None else x._base), []).append(x)
    wholes: list[Tensor] = []
    for parts in by_whole.values():
        whole = parts[0]._base
        if whole is None or len(whole) != len(parts[0]):
            wholes += parts
        else:
            fill = whole.numel() == sum(x.numel() for x in parts)
            wholes += [whole] if fill else parts
    return wholes
