"""One training step: gradients of every worker, aggregated, applied."""

from __future__ import annotations

import torch

from gcbench.train.run import ExchangeResult, Progress, Run, Sample


def train_step(run: Run, progress: Progress) -> ExchangeResult | None:
    """Take one step; return what was applied, if anything was.

    The gradients stay in the replica until the next step.
    """
    replica, clock, number = run.replica, run.clock, progress.step
    clock.lap("update")  # what an estimator does to the parameters and to zeroed gradients
    losses = run.pipeline.gradients(run, progress)
    progress.losses += losses
    progress.first_bad.note_gradients(number, losses, replica.flat)
    exchanged = run.pipeline.exchange(run, progress)

    clock.lap("update")
    run.schedule.set_rates(run.optimizer, number)
    if exchanged is not None:
        # Some optimizers write into gradients (Nesterov's momentum), and a sample comes later.
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

    `shannon_bits`, the least that the codes could cost, comes with them. Not counted, not timed.
    """
    mean = run.control.sum(exchanged.gradients.sum(0, dtype=torch.float64)) / run.comm.workers
    updates = [exchanged.update[name] for name in run.replica.grads if name in exchanged.update]
    applied = torch.cat([update.flatten() for update in updates]).double()
    norm, applied_norm = mean.norm(), applied.norm()
    error, cosine = (applied - mean).norm() / norm, (applied @ mean) / (applied_norm * norm)
    # float32 hides in which order the sum over workers went.
    measured = {
        "relative": float(error.float()),
        "cosine": float(cosine.float()),
    }
    if exchanged.shannon_bits is not None:
        measured["shannon_bits"] = float(
            (run.control.sum(exchanged.shannon_bits().sum()) / run.comm.workers).float()
        )
    return measured
