"""One training step: the gradients of all workers are computed, aggregated and applied."""

from __future__ import annotations

import torch

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
    """Return the update's relative 2-norm error and its cosine to the true mean gradient.

    Both are left out where that gradient is exactly 0, and the cosine where the update is. Where
    codes were gathered, `shannon_bits`, the least that these could cost, is included. The
    communication for a sample is neither counted nor timed.
    """
    mean = run.control.sum(exchanged.gradients.sum(0, dtype=torch.float64)) / run.comm.workers
    updates = [exchanged.update[name] for name in run.replica.grads if name in exchanged.update]
    applied = torch.cat([update.flatten() for update in updates]).double()
    norm, applied_norm = mean.norm(), applied.norm()
    measured: Sample = {}
    # Rounding to float32 hides the order in which the workers were summed.
    if norm != 0:
        measured["relative"] = float(((applied - mean).norm() / norm).float())
    if norm != 0 and applied_norm != 0:
        measured["cosine"] = float((applied @ mean / (applied_norm * norm)).float())
    if exchanged.shannon_bits is not None:
        measured["shannon_bits"] = float(
            (run.control.sum(exchanged.shannon_bits().sum()) / run.comm.workers).float()
        )
    return measured
