"""What is saved of exchanges: a part that all workers share, and one for each worker.

A checkpoint of a run has a file for each of them, and a worker's state of a handle has the shared
part and its own. What a worker saved may be read by any process, and if the number of workers
changes, the parts of several are merged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gcbench.core.compressor import Goal, Grads, State, flatten, unflatten
from gcbench.core.library.exchange import ExchangeResult, Kept

Part = Mapping[str, Any]
OWN_PARAMETERS = "each worker has parameters of its own between exchanges"


def shared_part(kept: Kept) -> dict[str, Any]:
    """Return what all workers have in common."""
    late = kept.late
    return {
        "exchanges": kept.exchanges,
        "state": [dict(layer.shared) for layer in kept.state.layers()],
        "late": late and {"update": late.update, "got": late.goal().got},
    }


def worker_part(kept: Kept, row: int) -> dict[str, Any]:
    """Return what only the worker of this row has."""
    return {
        "state": [
            {name: _row_of(x, row) for name, x in layer.per_worker.items()}
            for layer in kept.state.layers()
        ],
        "late": kept.late and _late_row(kept.late, row),
    }


def _row_of(x: Tensor, row: int) -> Tensor:
    """Return a row without the memory of others, which would be written to a file with it."""
    return x[row].clone() if len(x) > 1 else x[row]


def _late_row(late: ExchangeResult, row: int) -> dict[str, Tensor]:
    """Return a worker's part of the update that is still to be applied."""
    bits = {"shannon_bits": late.shannon_bits()[row].clone()} if late.shannon_bits else {}
    return {"wanted": flatten(late.goal().wanted)[row].clone(), **bits}


def read_parts(kept: Kept, shared: Part, workers: Sequence[Part]) -> Kept:
    """Return `kept` with what was saved: the shared part, and that of each worker here."""
    per_worker = [stack([w["state"][i] for w in workers]) for i in range(len(shared["state"]))]
    late = shared["late"] and _late_of(shared["late"], stack([w["late"] for w in workers]))
    return replace(
        kept,
        exchanges=shared["exchanges"],
        state=State.of_layers(list(zip(shared["state"], per_worker, strict=True))),
        late=late,
    )


def _late_of(shared: Mapping[str, Grads], rows: Mapping[str, Tensor]) -> ExchangeResult:
    bits = rows.get("shannon_bits")
    goal = Goal(unflatten(rows["wanted"], shared["update"]), shared["got"])
    return ExchangeResult(shared["update"], lambda: goal, None if bits is None else lambda: bits)


def stack(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {k: torch.stack([row[k] for row in rows]) for k in rows[0]}


def replaced_shares(worker: int, workers: int, before: int) -> dict[int, float]:
    """Return which of the `before` workers this one replaces, and their shares in the mean.

    `workers` is the number of workers now. The shares sum to 1.
    """
    overlaps = {
        k: min((k + 1) * workers, (worker + 1) * before) - max(k * workers, worker * before)
        for k in range(before)
    }
    return {k: overlap / before for k, overlap in overlaps.items() if overlap > 0}


def unmergeable_reason(
    part: Part, totals: Any, parameters: Collection[str], merge: bool
) -> str | None:
    """Return why workers' parts such as this one cannot be redistributed, or None if they can.

    `totals` are those of a worker's meter. Residuals may be averaged only if `merge`.
    """
    remembered = {name for layer in part["state"] for name in layer}
    if not remembered <= set(parameters):
        return (
            "each worker remembers a shard, whose size depends on the number of workers "
            "(exchange=scatter_coded)"
        )
    if any(not t.is_floating_point() for layer in part["state"] for t in layer.values()):
        return "each worker remembers codes, which have no mean (error_feedback=loco)"
    if any(level == "between" for (level, _, _), _ in totals):
        return "the bits between nodes are counted by node (exchange=hierarchical)"
    if remembered and not merge:
        return "each worker has a residual of its own (error feedback or momentum)"
    return None


def merge_parts(parts: Sequence[Part], shares: Sequence[float]) -> dict[str, Any]:
    """Return one worker's part, merged from those of several by `shares`."""
    merged: dict[str, Any] = mean_of([{k: p[k] for k in ("state", "late")} for p in parts], shares)
    return merged


def mean_of(trees: Sequence[Any], shares: Sequence[float]) -> Any:
    """Return the mean by `shares` of tensors in nested dicts and lists of one form.

    What has no mean, such as a number of steps, is that of the first. Raises ValueError for trees
    of different forms, and RuntimeError for tensors of different shapes.
    """

    def mean(*leaves: Any) -> Any:
        x = leaves[0]
        if not (isinstance(x, Tensor) and x.is_floating_point() and x.dim()):
            return x
        weights = torch.tensor(shares, dtype=x.dtype, device=x.device)
        return torch.tensordot(weights, torch.stack(leaves), dims=1)

    return tree_map(mean, *trees)


def merge_totals(totals_by_worker: Sequence[Any], shares: Sequence[float]) -> list[Any]:
    """Return the mean totals per kind of collective; all workers count the same kinds."""
    rows = [dict(totals) for totals in totals_by_worker]
    return [
        (
            kind,
            tuple(
                round(sum(row[kind][i] * share for row, share in zip(rows, shares, strict=True)))
                for i in range(3)
            ),
        )
        for kind in rows[0]
    ]
