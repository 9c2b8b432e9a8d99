"""Redistribution of the workers' state when a run continues with another number of workers.

Worker i of W' replaces the share from i / W' to (i + 1) / W' of the W workers before, and takes the
weighted mean of their states: merged workers are averaged, split ones are copied. So (1/W) times
the sum of all residuals, the update that is still to come, does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from gcbench.settings.config import RunConfig


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
    content: dict[str, Any], parameters: Collection[str], merge: bool
) -> str | None:
    """Return why workers' files such as `content` cannot be redistributed, or None if they can.

    Residuals may be averaged only if `merge`.
    """
    if content.get("inner"):
        return "each worker has parameters of its own between exchanges (see its estimator=)"
    remembered = {name for layer in content["state"] for name in layer}
    if not remembered <= set(parameters):
        return (
            "each worker remembers a shard, whose size depends on the number of workers "
            "(exchange=scatter_coded)"
        )
    if any(not t.is_floating_point() for layer in content["state"] for t in layer.values()):
        return "each worker remembers codes, which have no mean (error_feedback=loco)"
    if any(level == "between" for (level, _, _), _ in content["meter"]):
        return "the bits between nodes are counted by node (exchange=hierarchical)"
    if remembered and not merge:
        return "each worker has a residual of its own (error feedback or momentum)"
    return None


def other_epochs_reason(config: RunConfig, workers: int, before: int, now: int) -> str | None:
    """Return why a run whose epochs had `before` steps may not continue with `now`, or None.

    It may if nothing is counted in epochs. `workers` is the number of workers before.
    """
    trainer, schedule = config.trainer, config.schedule
    if trainer.max_steps is None:
        key, in_steps = f"trainer.epochs={trainer.epochs:g}", "trainer.max_steps"
    elif config.estimator.get("epoch_steps", 0) is None:
        key, in_steps = "estimator.epoch_steps=null", "estimator.epoch_steps"
    elif warmup_epochs := schedule.get("warmup_epochs", 0):
        key, in_steps = f"schedule.warmup_epochs={warmup_epochs:g}", "schedule.warmup_epochs=0"
    elif schedule.get("interval") == "epoch":
        key, in_steps = "schedule.interval=epoch", "schedule.interval=step"
    else:
        return None
    if before == now:
        return None
    return (
        f"an epoch of {workers} workers has {before} steps and one of {trainer.gpus} has {now}, "
        f"so that {key} would mean something else; type trainer.gpus={workers}. A run that was "
        f"started with {in_steps} may change its workers"
    )


def merge_workers(contents: Sequence[dict[str, Any]], shares: Sequence[float]) -> dict[str, Any]:
    """Return the content of one worker's file, merged from those of several by `shares`.

    Hidden states are reset, as the text is now cut into other columns, and buffers become worker
    0's, as they do in a test.
    """
    layers = zip(*(content["state"] for content in contents), strict=True)
    return {
        "state": [_mean_rows(layer, shares) for layer in layers],
        "late": contents[0]["late"]
        and _mean_rows([content["late"] for content in contents], shares),
        "carry": None,
        "meter": _mean_totals([content["meter"] for content in contents], shares),
        "loss": sum(
            content["loss"] * share for content, share in zip(contents, shares, strict=True)
        ),
    }


def stack(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {k: torch.stack([row[k] for row in rows]) for k in rows[0]}


def _mean_rows(rows: Sequence[dict[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    return {k: _mean(row, shares) for k, row in stack(rows).items()}


def _mean(rows: Tensor, shares: Sequence[float]) -> Tensor:
    return torch.tensordot(torch.tensor(shares, dtype=rows.dtype, device=rows.device), rows, dims=1)


def _mean_totals(totals_by_worker: Sequence[Any], shares: Sequence[float]) -> list[Any]:
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
