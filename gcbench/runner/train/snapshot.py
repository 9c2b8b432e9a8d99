"""The contents of a checkpoint's files, taken from a run and restored to it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from gcbench.core.compressor import Goal, Grads, State, flatten, unflatten
from gcbench.core.library.exchange import ExchangeResult
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.run import InnerModel, Progress, Run

log = logging.getLogger("gcbench")


def shared_content(run: Run, progress: Progress) -> dict[str, Any]:
    """Return the content of the file for what all workers share."""
    late = progress.kept.late
    return {
        "model": run.replica.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "state": [dict(layer.shared) for layer in progress.kept.state.layers()],
        "late": late and {"update": late.update, "got": late.goal().got},
        "buckets": progress.buckets,
        "estimator": progress.estimator,
        "step": progress.step,
        "steps_per_epoch": run.steps_per_epoch,
        "exchanges": progress.kept.exchanges,
        "logged": progress.logged,
        "tests": progress.tests,
        "samples": progress.samples,
        "sampled": progress.sampled,
        "codec_sums": progress.codec_sums,
        "ledger": progress.ledger.state(),
    }


def worker_content(run: Run, progress: Progress, row: int) -> dict[str, Any]:
    """Return the content of the file for the worker of this row."""
    return {
        "state": [
            {k: t[row].clone() for k, t in layer.per_worker.items()}
            for layer in progress.kept.state.layers()
        ],
        "late": progress.kept.late and _late_row(progress.kept.late, row),
        "carry": run.replica.carries[row],
        "buffers": [buffer.clone() for buffer in run.replica.buffers_of(row)],
        "meter": run.exchange.meter.state()[row],
        "loss": float(progress.losses[row]),
        "inner": _inner_content(run.inner[row]) if run.inner else None,
    }


def restore(
    run: Run, progress: Progress, shared: dict[str, Any], workers: Sequence[dict[str, Any]]
) -> None:
    """Restore the run and `progress` from the contents of the shared and the workers' files.

    Process 0 warns if times are not comparable with those until then.
    """
    run.replica.model.load_state_dict(shared["model"])
    run.optimizer.load_state_dict(shared["optimizer"])
    run.schedule.load_state_dict(shared["schedule"])
    _restore_workers(run, progress, workers)
    per_worker = [stack([w["state"][i] for w in workers]) for i in range(len(shared["state"]))]
    kept = progress.kept
    kept.state = State.of_layers(list(zip(shared["state"], per_worker, strict=True)))
    if shared["late"] is not None:
        kept.late = _late_from(shared["late"], stack([w["late"] for w in workers]))
    progress.buckets = shared.get("buckets", [])  # an older gcbench wrote none
    progress.estimator = shared["estimator"]
    progress.step = shared["step"]
    kept.exchanges = shared["exchanges"]
    progress.logged = shared["logged"]
    progress.tests, progress.samples = shared["tests"], shared["samples"]
    progress.sampled = shared.get("sampled", -1)  # likewise
    progress.codec_sums = shared.get("codec_sums", [])  # likewise
    changed = progress.ledger.load(shared["ledger"])
    if changed and run.first and progress.ledger.elapsed() is not None:
        log.warning(
            "the seconds of a step count from step %d on, as %s changed; those of curves are sums "
            "of both",
            progress.step,
            ", ".join(changed),
        )


def _inner_content(inner: InnerModel) -> dict[str, Any]:
    return {
        "parameters": {name: p.detach() for name, p in inner.parameters.items()},
        "optimizer": inner.optimizer.state_dict(),
        "schedule": inner.schedule.state_dict(),
    }


def _late_row(late: ExchangeResult, row: int) -> dict[str, Tensor]:
    """Return a worker's part of the update that is still to be applied."""
    bits = {"shannon_bits": late.shannon_bits()[row].clone()} if late.shannon_bits else {}
    return {"wanted": flatten(late.goal().wanted)[row].clone(), **bits}


def _late_from(shared: dict[str, Grads], rows: dict[str, Tensor]) -> ExchangeResult:
    """Return the update that is still to be applied, from the rows of `_late_row`."""
    bits = rows.get("shannon_bits")
    goal = Goal(unflatten(rows["wanted"], shared["update"]), shared["got"])
    return ExchangeResult(shared["update"], lambda: goal, None if bits is None else lambda: bits)


def _restore_workers(run: Run, progress: Progress, workers: Sequence[dict[str, Any]]) -> None:
    run.replica.carries = [w["carry"] for w in workers]
    for row, worker in enumerate(workers):
        if "buffers" in worker:  # not in older checkpoints, nor if the number of workers changes
            run.replica.set_buffers(row, worker["buffers"])
    run.exchange.load_meter([w["meter"] for w in workers])
    progress.losses.copy_(torch.tensor([w["loss"] for w in workers], dtype=torch.float64))
    for row, inner in enumerate(run.inner):
        content = workers[row]["inner"]
        for name, p in inner.parameters.items():
            p.data.copy_(content["parameters"][name])
        inner.optimizer.load_state_dict(content["optimizer"])
        inner.schedule.load_state_dict(content["schedule"])


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
    trainer, schedule, estimator = config.trainer, config.schedule, config.estimator
    if trainer.max_steps is None:
        key, in_steps = f"trainer.epochs={trainer.epochs:g}", "trainer.max_steps"
    elif "epoch_steps" in estimator.model_fields_set and estimator.epoch_steps is None:
        key, in_steps = "estimator.epoch_steps=null", "estimator.epoch_steps"
    elif schedule.warmup_epochs:
        key = f"schedule.warmup_epochs={schedule.warmup_epochs:g}"
        in_steps = "schedule.warmup_epochs=0"
    elif schedule.interval == "epoch":
        key, in_steps = "schedule.interval=epoch", "schedule.interval=step"
    else:
        return None
    if before == now:
        return None
    return (
        f"an epoch of {workers} workers has {before} steps and one of {trainer.workers} has {now}, "
        f"so that {key} would mean something else; type trainer.workers={workers}. A run that was "
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
