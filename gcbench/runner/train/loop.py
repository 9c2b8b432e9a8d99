"""The loop over steps: log, evaluate, checkpoint, stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Any, Literal

import torch

from gcbench.core.deviation import Deviation
from gcbench.core.library.exchange import ExchangeResult
from gcbench.runner.records.metrics import reaches
from gcbench.runner.train.checkpoints import Checkpoints
from gcbench.runner.train.drift import refuse_drift
from gcbench.runner.train.finite import BadValue, describe_bad_value
from gcbench.runner.train.run import Progress, Run, Sample
from gcbench.runner.train.scores import evaluate

Status = Literal["done", "diverged", "interrupted"]
Record = Callable[[dict[str, Any]], None]
NOTHING, CHECKPOINT, STOP = 0, 1, 2  # proposals in each step; the highest one wins


def train(
    run: Run,
    progress: Progress,
    checkpoints: Checkpoints,
    record: Record,
    before_save: Callable[[], None] | None = None,
) -> tuple[Status, str | None]:
    """Train from `progress` to the end; return the status and, unless it is `done`, the reason.

    `record` receives the lines of metrics.jsonl. `before_save` is called before a checkpoint is
    written: a run that continues from there does not record the lines until then again.
    """
    saved_at, saved_step = time.monotonic(), progress.step
    urgency = NOTHING
    while True:
        if _evaluation_is_due(run, progress):
            record(_evaluation_line(run, progress))
        if progress.step > saved_step and (
            urgency == CHECKPOINT or _checkpoint_is_due(run, progress)
        ):
            if before_save is not None:
                before_save()
            if diverged := _save(run, progress, checkpoints):
                return "diverged", diverged
            saved_at, saved_step = time.monotonic(), progress.step
        if progress.step == run.total_steps or _is_at_its_target(run, progress):
            if progress.logged < progress.step:  # it ends between two lines
                record(_log_line(run, progress, _first_bad(run, progress)))
            run.pipeline.settle(run, progress)
            diverged = _divergence(run, progress)
            return ("diverged", diverged) if diverged else ("done", None)

        run.control.propose(_urgency(run, saved_at))
        if sampled := _step(run, progress):
            record(_line("compression", run, progress) | sampled)
        urgency = run.control.agree()
        if progress.step == run.total_steps or progress.step % run.settings.log_every == 0:
            bad = _first_bad(run, progress)
            record(_log_line(run, progress, bad))
            if bad:
                return "diverged", describe_bad_value(bad)
        if _drift_is_due(run, progress):
            refuse_drift(run, progress)
        if urgency == STOP:  # the run that resumes makes up for an evaluation that is due now
            if diverged := _save(run, progress, checkpoints):
                return "diverged", diverged
            return "interrupted", f"stopped by a signal after step {progress.step}"


def _step(run: Run, progress: Progress) -> Sample | None:
    if progress.step % run.steps_per_epoch == 0:
        run.replica.forget_carries()
    exchanged = train_step(run, progress)
    if progress.step - 1 in (run.settings.record_gradients or ()):
        _record_gradients(run, progress.step - 1)
    step, every = progress.step - 1, run.settings.error_every
    if exchanged is None or not every or not run.samples_error(step, progress):
        return None
    progress.sampled = step // every
    progress.samples.append(sample(run, exchanged))
    return progress.samples[-1]


def _record_gradients(run: Run, step: int) -> None:
    """Write the gradients of a step to a file; this is neither timed nor counted."""
    rows = run.control.gather_tensors(run.replica.flat.cpu())
    if run.first:
        run.recordings.write(
            step, {k: p.shape for k, p in run.replica.parameters.items()}, torch.cat(rows)
        )


def _save(run: Run, progress: Progress, checkpoints: Checkpoints) -> str | None:
    """Write a checkpoint; if the run has diverged, return the reason instead."""
    run.pipeline.settle(run, progress)  # first, as the pending update may be what diverged
    if diverged := _divergence(run, progress):
        return diverged
    _spend(run, progress)  # so that the checkpoint's ledger includes the time since the last line
    checkpoints.save(run, progress)
    return None


def _divergence(run: Run, progress: Progress) -> str | None:
    """Return why the run has diverged, or None.

    It has if a value was not finite, or if the weights are not: then the next loss will not be.
    All processes return the same, though the weights of local steps are each worker's own.
    """
    if bad := _first_bad(run, progress):
        return describe_bad_value(bad)
    models = [run.replica.parameters, *(model.parameters for model in run.inner)]
    finite = all(p.isfinite().all() for parameters in models for p in parameters.values())
    if all(run.control.gather(finite)):
        return None
    return f"the weights were not finite after step {progress.step - 1}"


def _first_bad(run: Run, progress: Progress) -> BadValue | None:
    """Return the first value of any worker that was not finite, or None."""
    by_process = run.control.gather(progress.first_bad.collect(run.comm.local))
    return min((BadValue(*bad) for part in by_process for bad in part), default=None)


def _drift_is_due(run: Run, progress: Progress) -> bool:
    every = run.settings.drift_every
    return (
        every is not None
        and run.comm.processes > 1
        and (progress.step % every == 0 or progress.step == run.total_steps)
    )


def _urgency(run: Run, saved_at: float) -> int:
    if run.stop_requested():
        return STOP
    minutes = run.settings.checkpoint_minutes
    return CHECKPOINT if minutes and time.monotonic() - saved_at >= 60 * minutes else NOTHING


def _checkpoint_is_due(run: Run, progress: Progress) -> bool:
    every = run.settings.checkpoint_steps
    return every is not None and progress.step % every == 0 and progress.step < run.total_steps


def _evaluation_is_due(run: Run, progress: Progress) -> bool:
    every = run.settings.eval_every
    if (
        every is None
        or progress.step == 0
        or (progress.tests and progress.tests[-1]["step"] == progress.step)
    ):
        return False
    epochs, rest = divmod(progress.step, run.steps_per_epoch)
    return progress.step == run.total_steps or (rest == 0 and epochs % every == 0)


def _is_at_its_target(run: Run, progress: Progress) -> bool:
    """Return whether the test of this step has reached the score at which the run ends.

    A run that was killed after that test, and continues from its checkpoint, ends there, too.
    """
    last = progress.tests[-1] if progress.tests else None
    return last is not None and last["step"] == progress.step and _reaches_target(run, last)


def _reaches_target(run: Run, test: dict[str, Any]) -> bool:
    target = run.settings.stop_at
    return target is not None and reaches(test, target)


def _evaluation_line(run: Run, progress: Progress) -> dict[str, Any]:
    share = (run.process, run.comm.processes)
    test = partial(
        evaluate, run.replica, run.data, run.control, share, run.settings.eval_batch_size
    )
    scores = test()
    at_its_end = progress.step == run.total_steps or _reaches_target(run, scores)
    if run.settings.tta and at_its_end:
        scores |= {f"tta_{name}": score for name, score in test(augmented=True).items()}
    line = _line("test", run, progress) | scores | _spend(run, progress)
    progress.tests.append(line)
    return line


def _log_line(run: Run, progress: Progress, bad: BadValue | None) -> dict[str, Any]:
    """Return the log line for the steps since the last one, over all processes."""
    losses = run.control.gather(progress.losses.tolist())
    steps = progress.step - progress.logged
    progress.logged = progress.step
    progress.losses.zero_()
    rows = [loss for part in losses for loss in part]
    batches = steps * len(rows)
    return _line("train", run, progress) | {
        "loss": math.fsum(rows) / batches if batches else math.nan,
        "lr": run.learning_rate,
        **_spend(run, progress),
        "first_bad_step": bad and bad.step,
    }


def _line(event: str, run: Run, progress: Progress) -> dict[str, Any]:
    """Return the entries with which every line of metrics.jsonl begins."""
    epoch = progress.step / run.steps_per_epoch
    return {"event": event, "step": progress.step, "epoch": epoch}


def _spend(run: Run, progress: Progress) -> dict[str, float | None]:
    """Add laps to the ledger; return the bits and seconds of all steps, as means over workers.

    Seconds are None for virtual workers.
    """
    meter = run.exchange.meter
    local = meter.sent_bits, meter.wire_bits, run.clock.take()
    sent, received, laps = zip(*run.control.gather(local), strict=True)
    progress.ledger.add(list(laps))
    return {
        "bits_sent_per_worker": fmean(chain.from_iterable(sent)),
        "bits_received_per_worker": fmean(chain.from_iterable(received)),
        "seconds": progress.ledger.elapsed(),
    }


def train_step(run: Run, progress: Progress) -> ExchangeResult | None:
    """Take one step; return the exchange that was applied, or None if there was none.

    The gradients stay in the replica until the next step.
    """
    replica, clock, number = run.replica, run.clock, progress.step
    clock.lap("update")  # for the time in which the estimator changes parameters or zeroes rows
    losses = run.pipeline.gradients(run, progress)
    progress.losses += losses
    progress.first_bad.note_gradients(number, losses, replica.flat)
    exchanged = run.pipeline.exchange(run, progress)

    clock.lap("update")
    run.schedule.set_rates(run.optimizer, number)
    if exchanged is not None:
        # Some optimizers write into p.grad (Nesterov momentum), but `sample` needs the update.
        exchanged.give(replica.parameters, copy=run.samples_error(number, progress))
        run.optimizer.step()
    progress.step += 1
    run.estimator.end_step(run, progress)
    clock.end_step()
    return exchanged


@torch.no_grad()
def sample(run: Run, exchanged: ExchangeResult) -> Sample:
    """Return the update's relative error and its cosine to the mean of what was coded.

    Where codes were gathered, `shannon_bits`, the least that these could cost, is included. The
    communication for a sample is neither counted nor timed.
    """
    goal = exchanged.goal()
    measured: Sample = Deviation.of(goal, run.comm, run.control.sum).measured(run.compressor)
    if exchanged.shannon_bits is not None:
        measured["shannon_bits"] = float(
            (run.control.sum(exchanged.shannon_bits().sum()) / run.comm.workers).float()
        )
    return measured
