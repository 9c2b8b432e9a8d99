"""Variance-reduced gradients, with which quantization leaves no error floor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gcbench.core.compressor import Compressor
from gcbench.runner.data import Data
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.estimators import EveryStep, batch_of
from gcbench.runner.train.optimizers import options_by_group
from gcbench.runner.train.replica import is_recurrent
from gcbench.runner.train.run import Progress, Run

F = 32  # bits per unquantized value


@dataclass(frozen=True)
class SVRG(EveryStep):
    """QSVRG: quantized variance-reduced gradients, which lead to the minimum itself.

    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    NeurIPS 2017, section 3.3, after Johnson and Zhang, "Accelerating Stochastic Gradient Descent
    using Predictive Variance Reduction", NeurIPS 2013.

    An epoch has T iterations; each processor i of K holds the part h_i of f = h_1 + ... + h_K:

        grad f(y) = sum_i grad h_i(y)                 at its start, not quantized;  x_1 = y
        u_t = 1/K sum_i Q(grad f_j(x_t) - grad f_j(y) + grad f(y))    each i draws j for each t
        x_{t+1} = x_t - eta u_t
        y <- 1/T sum_t x_t                            at its end, t = 1 .. T

    As x and y approach the minimizer, what is quantized goes to zero, and with it the error of an
    unbiased Q. For strongly convex f and smooth f_i, eta = O(1/L) and T = O(L/l) multiply f(y) - f*
    by 0.9 per epoch (theorem 3.6). Q is the run's compressor; the paper's has s = sqrt(n) levels,
    one bucket of n values with the 2-norm, and Elias's dense code.

    Sends F = 32 bits per value at the start of an epoch, gathered from all workers, and what the
    compressor sends in each iteration: in the paper at most (F + 2.8 n)(T + 1) + F n bits per
    epoch.

    Differences from the paper: f_j is the mean over a worker's batch. Batches are drawn without
    replacement from all samples, which are reshuffled for every pass over the data, as are the
    workers' shares of the full gradient. An epoch of T steps need not be a pass over the data. A
    run that ends inside an epoch ends at x, not at an average.
    """

    epoch_steps: int | None = None  # T
    # As a part of f, it lets what is quantized go to zero; weight decay would not.
    penalty: float = 0.0

    def refuse(
        self, model: nn.Module, data: Data, compressor: Compressor, config: RunConfig
    ) -> None:
        """Raise ValueError where the batches' mean gradient is not the full gradient.

        The latter must be a function of the parameters alone.
        """
        for options in options_by_group(config.optimizer):
            _refuse_optimizer(options, self.penalty)
        if data.kind == "tokens" or is_recurrent(model):
            raise ValueError(
                "estimator=svrg needs independent samples, not text or a model that "
                "carries hidden state; type model=linear dataset=digits, or estimator=sgd"
            )
        if getattr(data, "augment", False):
            raise ValueError(
                "estimator=svrg needs the same samples in every epoch; type dataset.augment=false"
            )
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
            raise ValueError(
                "estimator=svrg cannot use batch normalization, whose gradient of a batch is not a "
                "mean over its samples; type model=linear, model=mlp or estimator=sgd"
            )
        if any(_is_random(m) for m in model.modules()):
            raise ValueError(
                "estimator=svrg needs a model without dropout, whose gradient is random; type "
                "estimator=sgd"
            )

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        t = progress.step % self._length(run)
        if t == 0:
            progress.estimator = self._anchor(run, progress)
        state, replica, key = progress.estimator, run.replica, (run.seed, progress.step)
        torch._foreach_lerp_(state["average"], _parameters(run), 1 / (t + 1))
        replica.begin()
        losses = []
        for row in range(len(replica.workers)):
            batch = batch_of(run, progress.step, row)
            with replica.parameters_at(state["y"]):
                replica.backward(row, batch, key, run.clock, weight=-1.0)
            losses.append(replica.backward(row, batch, key, run.clock))
        replica.flat += state["full"][0] + self.penalty * _flat(_parameters(run))
        return torch.stack(losses)

    def whole_gradients(self, run: Run, progress: Progress) -> int:
        """Return how many full gradients there were, one at the start of each epoch."""
        return len(progress.estimator.get("norms", []))

    def end_step(self, run: Run, progress: Progress) -> None:
        if progress.step % self._length(run) == 0:
            torch._foreach_copy_(_parameters(run), progress.estimator["average"])

    def facts(
        self, run: Run, progress: Progress, sent_bits_per_step: float
    ) -> dict[str, Any] | None:
        """Return the bits per epoch and `gradient_norms`, ||grad f(y)|| at every epoch's start.

        f(y) - f* is at most ||grad f(y)||^2 / (2 l).
        """
        steps, full = self._length(run), run.replica.dense_bits
        # A run may end within an epoch, whose full gradient it has sent already.
        epochs = self.whole_gradients(run, progress)
        coded = sent_bits_per_step - full * epochs / max(1, progress.step)
        return {
            "gradient_norms": [float(norm) for norm in progress.estimator.get("norms", [])],
            "epoch_steps": steps,
            "metered_bits_per_epoch": coded * steps + full,
            "analytic_bits_per_epoch": paper_bits(run.replica.numel, steps),
        }

    def _anchor(self, run: Run, progress: Progress) -> dict[str, list[Tensor]]:
        """Return y, grad f(y) without the penalty, a zero average, and the norms of all epochs."""
        point = _parameters(run)
        full = _full_gradient(run, progress.step)
        return {
            "y": [p.clone() for p in point],
            "full": [full],
            "average": [torch.zeros_like(p) for p in point],
            "norms": [
                *progress.estimator.get("norms", []),
                (full + self.penalty * _flat(point)).norm(),
            ],
        }

    def _length(self, run: Run) -> int:
        return self.epoch_steps or run.steps_per_epoch


def _refuse_optimizer(optimizer: Mapping[str, Any], penalty: float) -> None:
    is_sgd = optimizer.get("kind") in ("sgd", "powersgd")
    if not is_sgd or optimizer["momentum"]:
        typed = f"optimizer.momentum={optimizer.get('momentum')}"
        wanted = "optimizer.momentum=0"
        if not is_sgd:
            typed = f"optimizer={optimizer.get('kind') or optimizer['_target_']}"
            wanted = f"optimizer=sgd {wanted}"
        raise ValueError(
            f"{typed}: estimator=svrg takes plain SGD steps, because an epoch ends at an averaged "
            f"iterate, for which the old momentum is not valid; type {wanted}"
        )
    if penalty and optimizer["weight_decay"]:
        raise ValueError(
            f"estimator.penalty={penalty:g} takes the place of optimizer.weight_decay="
            f"{optimizer['weight_decay']:g}, and both would act; type optimizer.weight_decay=0"
        )


def paper_bits(n: int, steps: int) -> float:
    """Return the paper's bound on the bits that a processor sends per epoch (theorem 3.6).

    `n` is the number of values. The 2.8 n leaves out an o(n) term.
    """
    return (F + 2.8 * n) * (steps + 1) + F * n


def _full_gradient(run: Run, number: int) -> Tensor:
    """Return the gradient over all training samples, `[n]`.

    Workers' parts are gathered, not reduced on the way, so that any layout gives the same bits.
    """
    replica, samples = run.replica, run.data.train_samples
    epoch = number // run.steps_per_epoch
    batches = cover_samples(samples, run.settings.batch_size)
    replica.begin()
    replica.flat.zero_()  # a worker may be left without a batch
    for row, worker in enumerate(replica.workers):
        for step, size in batches[worker :: run.comm.workers]:
            run.clock.lap("data")
            batch = run.data.batch(
                epoch=epoch, step=step, worker=0, workers=1, batch_size=size, seed=run.seed
            )
            replica.backward(row, batch, (run.seed, number), run.clock, weight=size / samples)
    run.clock.lap("compress")
    (parts,) = run.comm.gather([replica.flat])
    run.clock.lap("update")
    return parts.sum(0)


def cover_samples(samples: int, largest: int) -> list[tuple[int, int]]:
    """Return (step, batch size) of batches that together hold every sample once.

    Every batch has at most `largest` samples, and starts at a multiple of its size.
    """
    batches, start = [], 0
    while start < samples:
        size = next(d for d in range(min(largest, samples - start), 0, -1) if start % d == 0)
        batches.append((start // size, size))
        start += size
    return batches


def _parameters(run: Run) -> list[Tensor]:
    return [p.data for p in run.replica.parameters.values()]


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def _is_random(module: nn.Module) -> bool:
    """Return whether a module is dropout, or a layer with dropout inside such as attention."""
    rate = getattr(module, "dropout", 0.0)
    if isinstance(module, nn.modules.dropout._DropoutNd):
        rate = module.p
    return isinstance(rate, float) and rate > 0
