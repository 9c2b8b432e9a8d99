"""One training step: the gradients of all workers are computed, aggregated and applied."""

from __future__ import annotations

import torch

from gcbench.compressors import flatten, is_direction
from gcbench.train.run import ExchangeResult, Progress, Run, Sample


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
        copy = run.samples_error(number, progress)
        for name, p in replica.parameters.items():
            update = exchanged.update.get(name)
            p.grad = None if update is None else update[0].to(p.dtype, copy=copy)
        run.optimizer.step()
    progress.step += 1
    run.estimator.end_step(run, progress)
    clock.end_step()
    return exchanged


@torch.no_grad()
def sample(run: Run, exchanged: ExchangeResult) -> Sample:
    """Return the update's relative 2-norm error and its cosine to the mean of what was coded.

    This is the mean over workers of their gradients, unless a wrapper or a method changes what is
    coded (`gcbench.compressors.Goal`). Both are left out where that mean is exactly 0, the cosine
    where the update is, and the error where the update has no scale. Where codes were gathered,
    `shannon_bits`, the least that these could cost, is included. The communication for a sample is
    neither counted nor timed.
    """
    goal = exchanged.goal()
    wanted = flatten(goal.wanted).sum(0, dtype=torch.float64)
    mean = run.control.sum(wanted) / run.comm.workers
    got = flatten({name: goal.got[name] for name in goal.wanted})[0].double()
    norm, got_norm = mean.norm(), got.norm()
    measured: Sample = {}
    # Rounding to float32 hides the order in which the workers were summed.
    if norm != 0 and not is_direction(run.compressor):
        measured["relative"] = float(((got - mean).norm() / norm).float())
    if norm != 0 and got_norm != 0:
        measured["cosine"] = float((got @ mean / (got_norm * norm)).float())
    if exchanged.shannon_bits is not None:
        measured["shannon_bits"] = float(
            (run.control.sum(exchanged.shannon_bits().sum()) / run.comm.workers).float()
        )
    return measured
