"""One training step: gradients of every worker, aggregated, applied."""

from __future__ import annotations

import torch

from gcbench.compressors import Aggregated, Step
from gcbench.train.run import Progress, Run, Sample


def train_step(run: Run, progress: Progress) -> Aggregated:
    """The gradients stay in the replica until the next step."""
    replica, clock, number = run.replica, run.clock, progress.step
    clock.lap("update")  # what an estimator does to the parameters and to zeroed gradients
    losses = run.estimator.gradients(run, progress)
    progress.losses += losses
    progress.first_bad.note(number, losses, replica.flat)

    clock.lap("compress")
    step = Step(number, run.seed, replica.workers, replica.offsets)
    with torch.no_grad():
        out = run.compressor.aggregate(replica.grads, progress.state, run.comm, step)
    progress.state = out.state

    clock.lap("update")
    for group in run.optimizer.param_groups:
        group["lr"] = run.lr * run.schedule.factor(number)
    for name, p in replica.parameters.items():
        p.grad = out.update[name][0].to(p.dtype)
    run.optimizer.step()
    progress.step += 1
    run.estimator.end_step(run, progress)
    clock.end_step()
    return out


@torch.no_grad()
def sample(run: Run, out: Aggregated) -> Sample:
    """Relative 2-norm error of the update against the true mean gradient, and their cosine; the least that the codes could
    cost. Not counted, not timed."""
    replica = run.replica
    mean = run.control.sum(replica.flat.sum(0, dtype=torch.float64)) / run.comm.workers
    applied = torch.cat([out.update[name].flatten() for name in replica.grads]).double()
    norm, applied_norm = mean.norm(), applied.norm()
    error, cosine = (applied - mean).norm() / norm, (applied @ mean) / (applied_norm * norm)
    found = {"relative": float(error.float()), "cosine": float(cosine.float())}  # alike however the sum over workers went
    if out.shannon_bits is not None:
        found["shannon_bits"] = float((run.control.sum(out.shannon_bits().sum()) / run.comm.workers).float())
    return found
