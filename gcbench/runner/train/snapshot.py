"""The contents of a checkpoint's files, taken from a run and restored to it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import torch

from gcbench.core.library.saved import (
    OWN_PARAMETERS,
    mean_of,
    merge_parts,
    merge_totals,
    read_parts,
    shared_part,
    unmergeable_reason,
    worker_part,
)
from gcbench.core.library.states import (
    not_a_state,
    read_kept,
    refuse_other_late,
    refuse_other_optimizer,
    refuse_other_states,
    refuse_other_traffic,
    refuse_other_values,
)
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.run import InnerModel, Progress, Run

log = logging.getLogger("gcbench")


def shared_content(run: Run, progress: Progress) -> dict[str, Any]:
    """Return the content of the file for what all workers share."""
    return {
        **shared_part(progress.kept),
        "model": run.replica.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "buckets": progress.buckets,
        "estimator": progress.estimator,
        "step": progress.step,
        "steps_per_epoch": run.steps_per_epoch,
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
        **worker_part(progress.kept, row),
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

    Raises:
        StateError: if they are not those of such a run; nothing is replaced then.
    """
    refuse_other_contents(run, progress, shared, workers)
    run.replica.model.load_state_dict(shared["model"])
    run.optimizer.load_state_dict(shared["optimizer"])
    run.schedule.load_state_dict(shared["schedule"])
    _restore_workers(run, progress, workers)
    progress.kept = read_parts(progress.kept, shared, workers)
    progress.buckets = shared.get("buckets", [])
    progress.estimator = shared["estimator"]
    progress.step = shared["step"]
    progress.logged = shared["logged"]
    progress.tests, progress.samples = shared["tests"], shared["samples"]
    progress.sampled = shared.get("sampled", -1)
    progress.codec_sums = shared.get("codec_sums", [])
    changed = progress.ledger.load(shared["ledger"])
    if changed and run.first and progress.ledger.elapsed() is not None:
        log.warning(
            "the seconds of a step count from step %d on, as %s changed; those of curves are sums "
            "of both",
            progress.step,
            ", ".join(changed),
        )


def refuse_other_contents(
    run: Run, progress: Progress, shared: dict[str, Any], workers: Sequence[dict[str, Any]]
) -> None:
    """Raise StateError unless contents have the names, shapes and types of this run's."""
    own = shared_content(run, progress)
    _refuse_other_kinds(shared, own)
    refuse_other_values("model", shared["model"], own["model"], finite=run.replica.parameters)
    refuse_other_optimizer("optimizer", shared["optimizer"], run.optimizer)
    kept = []
    for row, worker in enumerate(workers):
        own = worker_content(run, progress, row)
        _refuse_other_kinds(worker, own)
        refuse_other_traffic(worker)
        if "buffers" in worker:
            theirs, ours = ({str(i): b for i, b in enumerate(x["buffers"])} for x in (worker, own))
            refuse_other_values("buffers", theirs, ours, finite=())
        if own["inner"]:
            inner = worker["inner"]
            refuse_other_values("parameters", inner["parameters"], own["inner"]["parameters"])
            refuse_other_optimizer("optimizer", inner["optimizer"], run.inner[row].optimizer)
        parts = {"shared": shared, "own": worker}
        kept.append(read_kept(progress.kept, parts, run.replica.device))
    for names in run.estimator.messages(run):
        shapes = {name: run.replica.shapes[name] for name in names}
        states = [one.of(names) for one in kept]
        refuse_other_states(run.compressor, run.comm, shapes, states, run.replica.device)
    refuse_other_late(kept[0], run.replica.parameters)


# What an older gcbench has not written, or workers lack whose number has changed.
_OPTIONAL = {"buckets", "sampled", "codec_sums", "steps_per_epoch", "buffers"}
_OF_ANY_KIND = {"late", "carry"}  # None, where there is none yet


def _refuse_other_kinds(content: dict[str, Any], own: dict[str, Any]) -> None:
    """Raise StateError unless a file's content has values of the same types as `own`."""
    for key in own.keys() - _OPTIONAL - content.keys():
        raise not_a_state(f"no {key}")
    for key in own.keys() & content.keys() - _OF_ANY_KIND:
        if type(content[key]) is not type(own[key]):
            raise not_a_state(f"{key}={content[key]!r:.60}")


def _inner_content(inner: InnerModel) -> dict[str, Any]:
    return {
        "parameters": {name: p.detach() for name, p in inner.parameters.items()},
        "optimizer": inner.optimizer.state_dict(),
        "schedule": inner.schedule.state_dict(),
    }


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


def unmergeable_content(
    content: dict[str, Any], parameters: Collection[str], merge: bool
) -> str | None:
    """Return why workers' files such as `content` cannot be redistributed, or None if they can.

    Residuals may be averaged only if `merge`.
    """
    if content.get("inner") and not merge:
        return f"{OWN_PARAMETERS} (see its estimator=)"
    return unmergeable_reason(content, content["meter"], parameters, merge)


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
    0's, as they do in a test. Workers with parameters of their own go on from the mean of these.
    """
    return {
        **merge_parts(contents, shares),
        "inner": mean_of([content.get("inner") for content in contents], shares),
        "carry": None,
        "meter": merge_totals([content["meter"] for content in contents], shares),
        "loss": sum(
            content["loss"] * share for content, share in zip(contents, shares, strict=True)
        ),
    }
