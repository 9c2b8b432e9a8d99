"""The contents of a checkpoint's files, taken from a run and restored to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gcbench.compressors import Goal, Grads, State, flatten, unflatten
from gcbench.train.resharding import stack
from gcbench.train.run import ExchangeResult, InnerModel, Progress, Run

log = logging.getLogger("gcbench")


def shared_content(run: Run, progress: Progress) -> dict[str, Any]:
    """Return the content of the file for what all workers share."""
    return {
        "model": run.replica.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "state": [dict(layer.shared) for layer in progress.state.layers()],
        "late": progress.late and {"update": progress.late.update, "got": progress.late.goal().got},
        "buckets": progress.buckets,
        "estimator": progress.estimator,
        "step": progress.step,
        "steps_per_epoch": run.steps_per_epoch,
        "exchanges": progress.exchanges,
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
            for layer in progress.state.layers()
        ],
        "late": progress.late and _late_row(progress.late, row),
        "carry": run.replica.carries[row],
        "buffers": [buffer.clone() for buffer in run.replica.buffers_of(row)],
        "meter": run.comm.meter.state()[row],
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
    progress.state = State.of_layers(list(zip(shared["state"], per_worker, strict=True)))
    if shared["late"] is not None:
        progress.late = _late_from(shared["late"], stack([w["late"] for w in workers]))
    progress.buckets = shared.get("buckets", [])  # an older gcbench wrote none
    progress.estimator = shared["estimator"]
    progress.step = shared["step"]
    progress.exchanges = shared["exchanges"]
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
    run.comm.meter.load([w["meter"] for w in workers])
    progress.losses.copy_(torch.tensor([w["loss"] for w in workers], dtype=torch.float64))
    for row, inner in enumerate(run.inner):
        content = workers[row]["inner"]
        for name, p in inner.parameters.items():
            p.data.copy_(content["parameters"][name])
        inner.optimizer.load_state_dict(content["optimizer"])
        inner.schedule.load_state_dict(content["schedule"])
