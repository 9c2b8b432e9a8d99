"""0/1 Adam: the variance is updated less and less often, and exchanges are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from gcbench.core.compressor import Compressor, Grads, unflatten
from gcbench.core.local_rule import refuse_momentum
from gcbench.core.wrappers.virtual import parts_of
from gcbench.core.wrappers.wrappers import NormClipping
from gcbench.runner.data import Data
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.local_steps import InnerSteps
from gcbench.runner.train.optimizers import FrozenAdam, options_by_group
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.run import InnerModel, MakeOptimizer, Optimizers, Progress, Run
from gcbench.runner.train.schedules import CONSTANT


@dataclass(frozen=True)
class ZeroOneAdam(InnerSteps):
    """0/1 Adam: workers exchange their accumulated steps, scaled by a shared variance.

    Lu, Li, Zhang, De Sa and He, "Maximizing Communication Efficiency for Large-scale Training via
    0/1 Adam", ICLR 2023 (arXiv 2202.06009), algorithm 1. The optimizer is `frozen_adam`, which sets
    the learning rate g_t (and the bias corrections, if it has them), beta_1, beta_2, eps and the
    steps T_v that update the variance: k_0 = 0, k_{j+1} = k_j + 2^floor(j / kappa) below
    `freeze_steps`. Let x be the parameters that all workers share, which are evaluated and saved,
    x_i those of worker i, m_i its momentum, and v the variance. In every step t:

        t in T_v:   g <- mean over workers of the gradients, in fp32
                    v <- beta_2 v + (1 - beta_2) g^2;   m_i <- beta_1 m_i + (1 - beta_1) g
                    x_i <- x_i - g_t m_i / (sqrt(v) + eps);   x <- x_i
        others:     m_i <- beta_1 m_i + (1 - beta_1) g_i
                    x_i <- x_i - g_t m_i / (sqrt(v) + eps)
        t in T_u:   u_i = (sqrt(v) + eps) (x - x_i), the sum of g_t m_i since the last exchange
                    u = Aggregate(u_1, ..., u_W)           by the run's compressor
                    x <- x - u / (sqrt(v) + eps);   m_i <- u / (sum of these g_t);   x_i <- x

    T_u contains all steps outside T_v until the variance is frozen. After that, exchanges are one
    step apart, and this distance doubles every `double_steps` steps up to H = `max_every`. The
    paper's compressor is `scaled_sign error_feedback=true exchange=scatter_coded`; its state has
    the unit of u, so that it keeps its meaning when that distance changes.

    Sends 32 bits per value by an all-reduce in steps of T_v, and what the compressor sends for a
    gradient in steps of T_u.

    Differences from the paper: its printed algorithm starts with v = 0, and exchanges u in steps of
    T_v too. Here, as in its code (DeepSpeed), v is updated first, and m uses the mean gradient in
    these steps as well. The paper ties T_u to the learning rate, which halves every 32678 steps in
    its experiments; its code counts these steps from when the variance is frozen, as here.
    Differences from the code: it codes gradients, not u, until the variance is frozen, and then
    discards the residuals. Its steps that update v are multiples of the interval, counted from a
    call that only makes buffers: with kappa = 16 they are those of the formula up to k = 46, and
    two steps later from then on. Its signs have the root mean square for magnitude (`scale=rms`),
    where the paper has the mean. Weight decay scales x and x_i, and thus the part of u from earlier
    steps; in the code it is a part of u, and so of the momentum. A value whose v is 0 changes by
    weight decay only.
    """

    max_every: int
    double_steps: int

    @property
    def period(self) -> int:
        return self.max_every

    def build_optimizers(self, replica: Replica, make_optimizer: MakeOptimizer) -> Optimizers:
        """Return the optimizer that divides u by sqrt(v) + eps, and the workers' own."""
        inner = self.build_inner(replica, make_optimizer)
        shared = DividedSteps(replica.parameters.values(), lambda: _roots(inner[0]).values())
        return Optimizers(shared, CONSTANT, inner)

    def refuse(
        self, model: nn.Module, data: Data, compressor: Compressor, config: RunConfig
    ) -> None:
        """Raise ValueError for another optimizer, a coded momentum, or norm clipping."""
        for options in options_by_group(config.optimizer):
            if options.get("kind") != "frozen_adam":
                raise ValueError(
                    f"optimizer={options.get('kind') or options['_target_']}: estimator="
                    "zero_one_adam needs an optimizer with a frozen variance; type "
                    "optimizer=frozen_adam"
                )
        refuse_momentum(compressor)
        for part in parts_of(compressor):
            if isinstance(part, NormClipping):
                raise ValueError(
                    f"clip_norm={part.clip_norm:g} would scale what is exchanged, from which "
                    "estimator=zero_one_adam computes the momentum; type clip_norm=null"
                )

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        losses = self.backward(run, progress)
        optimizer, grads = _optimizer_of(run), run.replica.grads
        if optimizer.updates_variance(progress.step):
            run.clock.lap("compress")
            (mean,) = run.comm.mean([run.replica.flat])
            grads = unflatten(mean, grads)
            run.clock.lap("update")
        self.step_inner(run, progress, grads)
        for group in optimizer.param_groups:
            names = {p: name for name, p in run.inner[0].parameters.items()}
            for p in group["params"]:
                decay = group["lr"] * group["weight_decay"]
                run.replica.parameters[names[p]].data.mul_(1 - decay)
        sizes = torch.tensor(optimizer.step_sizes(), dtype=torch.float64)
        (moved,) = progress.estimator.get("moved", [torch.zeros_like(sizes)])
        # After a resume this tensor is on the model's device, which may be a GPU.
        progress.estimator = {"moved": [moved.cpu() + sizes]}
        return losses

    @torch.no_grad()
    def due_gradients(self, run: Run, progress: Progress) -> Grads:
        """Return u, which overwrites the gradients in the rows, or nothing outside T_u."""
        if not self._exchanges(_optimizer_of(run), progress.step):
            return {}
        rows = run.replica.grads
        for row, inner in enumerate(run.inner):
            for name, root in _roots(inner).items():
                x, x_i = run.replica.parameters[name], inner.parameters[name]
                rows[name][row] = torch.where(root < torch.inf, (x - x_i) * root, 0)
        return rows

    def whole_gradients(self, run: Run, progress: Progress) -> int:
        """Return how many variance updates there were, each with a mean gradient sent in fp32."""
        return sum(map(_optimizer_of(run).updates_variance, range(progress.step)))

    @torch.no_grad()
    def end_step(self, run: Run, progress: Progress) -> None:
        optimizer, step = _optimizer_of(run), progress.step - 1
        if optimizer.updates_variance(step):
            for name, p in run.replica.parameters.items():
                p.copy_(run.inner[0].parameters[name])
        elif self._exchanges(optimizer, step):
            for inner in run.inner:
                self._take_over(inner, run.replica.parameters, progress.estimator["moved"][0])
        else:
            return
        progress.estimator = {}

    def _take_over(
        self, inner: InnerModel, shared: Mapping[str, nn.Parameter], moved: Tensor
    ) -> None:
        """Set a worker's parameters to the shared ones, and its momentum to u / (sum of g_t)."""
        names = {p: name for name, p in inner.parameters.items()}
        for group, size in zip(inner.optimizer.param_groups, moved.tolist(), strict=True):
            for p in group["params"]:
                x = shared[names[p]]
                p.copy_(x)
                if size:  # at a rate of 0 nothing has moved, and u says nothing of the momentum
                    inner.optimizer.state[p]["exp_avg"].copy_(cast(Tensor, x.grad) / size)

    def facts(
        self, run: Run, progress: Progress, sent_bits_per_step: float
    ) -> dict[str, Any] | None:
        """Return how many exchanges and updates of the variance there were."""
        return {
            "max_every": self.max_every,
            "exchanges": progress.kept.exchanges,
            "variance_updates": self.whole_gradients(run, progress),
        }

    def _exchanges(self, optimizer: FrozenAdam, step: int) -> bool:
        """Return whether the compressor exchanges at the end of this step, counted from 0."""
        frozen = step + 1 - optimizer.freeze_steps
        if frozen <= 0:
            return not optimizer.updates_variance(step)
        doublings = min((frozen - 1) // self.double_steps, self.max_every.bit_length())
        return frozen % min(self.max_every, 2**doublings) == 0


class DividedSteps(torch.optim.Optimizer):
    """An optimizer that subtracts the update divided by `divisors()`, called in every step."""

    def __init__(
        self, params: Iterable[nn.Parameter], divisors: Callable[[], Iterable[Tensor]]
    ) -> None:
        super().__init__([{"params": list(params), "initial_lr": 1.0}], {"lr": 1.0})
        self._divisors = divisors

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for p, divisor in zip(self.param_groups[0]["params"], self._divisors(), strict=True):
            p.addcdiv_(p.grad, divisor, value=-1)


def _optimizer_of(run: Run) -> FrozenAdam:
    """Return the first local worker's optimizer; variance and step are the same in all."""
    return cast(FrozenAdam, run.inner[0].optimizer)


def _roots(inner: InnerModel) -> dict[str, Tensor]:
    """Return the divisor of each parameter's steps by name, in the order of the parameters."""
    roots = cast(FrozenAdam, inner.optimizer).roots()
    return {name: roots[p] for name, p in inner.parameters.items()}
