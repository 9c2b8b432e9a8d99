"""A run: its fixed parts (`Run`), and how far it has come (`Progress`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from gcbench.core.codecs.kernels import Backend
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor, Grads
from gcbench.core.library.exchange import Exchange, ExchangeResult, Kept
from gcbench.runner.control import Control
from gcbench.runner.data import Data
from gcbench.runner.records.clock import Clock, Ledger
from gcbench.runner.records.gradients import GradientFiles
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.settings.groups import TrainerSettings
from gcbench.runner.train.finite import FirstBad
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.schedules import Schedule

Sample = dict[str, float]
"""The `relative` error of an update (if it has a scale) and its `cosine`; if codes were gathered,
also the Shannon bound `shannon_bits` of what a worker sent for it.
"""


@dataclass(frozen=True)
class InnerModel:
    """A worker's own parameters, and the optimizer that updates them between exchanges."""

    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer
    schedule: Schedule


class Optimizers(NamedTuple):
    """The optimizers of a run, with their schedules."""

    shared: torch.optim.Optimizer  # applies updates to the parameters that workers share
    schedule: Schedule  # sets the rates of `shared`
    inner: Sequence[InnerModel] = ()  # one for each worker here, if these take local steps


MakeOptimizer = Callable[[nn.Module], tuple[torch.optim.Optimizer, Schedule]]
"""Makes the configured optimizer and schedule for the parameters of a model."""


class Estimator(Protocol):
    """The source of a step's gradients, before any compression."""

    @property
    def period(self) -> int:
        """Return the maximum number of steps from one exchange to the next."""

    def exchanges_in(self, steps: int) -> int:
        """Return how many times each parameter is exchanged in `steps` steps, at most."""
        return steps

    @property
    def worker_copies(self) -> int:
        """Return how many copies of the parameters each worker keeps for its local steps."""

    def build_optimizers(self, replica: Replica, make_optimizer: MakeOptimizer) -> Optimizers:
        """Return the optimizer of the shared parameters, and those of the workers' own."""

    def refuse(
        self, model: nn.Module, data: Data, compressor: Compressor, config: RunConfig
    ) -> None:
        """Raise ValueError for settings that would run, but not do what the estimator promises."""
        return

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        """Fill the replica's rows of gradients; return each worker's mean loss, `[w]`."""

    def due_gradients(self, run: Run, progress: Progress) -> Grads:
        """Return the rows that are exchanged after this step's backward pass: all, or none."""
        return run.replica.grads

    def messages(self, run: Run) -> list[list[str]]:
        """Return the groups of parameter names that are exchanged together."""
        return [list(run.replica.grads)]

    def whole_gradients(self, run: Run, progress: Progress) -> int:
        """Return how many uncompressed gradients were sent besides the compressor's exchanges."""
        return 0

    def end_step(self, run: Run, progress: Progress) -> None:
        """Finish a step, after parameters were updated and `progress.step` was increased."""
        return

    def facts(
        self, run: Run, progress: Progress, sent_bits_per_step: float
    ) -> dict[str, Any] | None:
        """Return facts about the estimator for result.json, or None.

        `sent_bits_per_step` is the payload that a worker sends per step, as metered.
        """
        return None


class Pipeline(Protocol):
    """The order of work in a step, which calls `gradients` and then `exchange`, once each."""

    overlap_ratio: float | None = None
    """Time of a step with overlap divided by one without, if a trial has compared them."""
    sent_in: int = 0
    """The last step in which an exchange began."""

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        """Fill the replica's rows of gradients; return each worker's mean loss, `[w]`."""
        return run.estimator.gradients(run, progress)

    def exchange(self, run: Run, progress: Progress) -> ExchangeResult | None:
        """Return the exchange to apply now, or None if there is none yet."""

    def begin(self, run: Run, progress: Progress, grads: Grads, beside: bool = True) -> None:
        """Begin to exchange gradients, `beside` the computation or now."""
        self.sent_in = progress.step
        run.exchange.begin(progress.kept, grads, beside)

    def take(self, run: Run, progress: Progress) -> ExchangeResult | None:
        """Return the exchange under way, for which this waits."""
        self.settle(run, progress)
        return run.exchange.take(progress.kept)

    def settle(self, run: Run, progress: Progress) -> None:
        """Wait for background exchanges, so that `progress` and the run's meter include them."""
        if (out := run.exchange.settle(progress.kept)) is not None:
            progress.first_bad.note_exchange(self.sent_in, out)

    def messages(self, run: Run) -> list[list[str]]:
        """Return the groups of parameter names that a step, like the last, exchanges together."""
        return run.estimator.messages(run)


@dataclass(frozen=True)
class Run:
    """The fixed parts of a run."""

    data: Data
    replica: Replica
    estimator: Estimator
    pipeline: Pipeline
    exchange: Exchange
    control: Control
    optimizer: torch.optim.Optimizer  # applies updates to the parameters that workers share
    schedule: Schedule
    inner: Sequence[InnerModel]  # one for each worker here, if these take local steps
    clock: Clock
    recordings: GradientFiles
    settings: TrainerSettings
    seed: int
    process: int
    steps_per_epoch: int
    total_steps: int
    stop_requested: Callable[[], bool]
    # What its times depend on and may change when it continues, as process 0 sees it.
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compressor(self) -> Compressor:
        return self.exchange.compressor

    @property
    def comm(self) -> Comm:
        """Return the collectives, which carry exchanges, and whole gradients of an estimator."""
        return self.exchange.comm

    @property
    def first(self) -> bool:
        """Return whether this process writes the files of the run."""
        return self.process == 0

    @property
    def learning_rate(self) -> float:
        """Return the (inner) optimizer's current rate for parameters in no `optimizer.groups`."""
        optimizer = self.inner[0].optimizer if self.inner else self.optimizer
        rate: float = optimizer.param_groups[0]["lr"]
        return rate

    def samples_error(self, step: int, progress: Progress) -> bool:
        """Return whether the compression error of this step is sampled, if it has an exchange.

        The first exchange in every `error_every` steps is sampled.
        """
        every = self.settings.error_every
        return every is not None and step // every != progress.sampled


@dataclass
class Progress:
    """The state of a run besides model and optimizer; a checkpoint holds all of it."""

    ledger: Ledger
    losses: Tensor  # [w] float64, summed since the last log line
    first_bad: FirstBad
    kept: Kept  # by exchanges
    step: int = 0
    logged: int = 0  # the step of the last log line
    # The parameters of each bucket in the last exchange that ran during its backward pass.
    buckets: list[list[str]] = field(default_factory=list)
    # The estimator's state, identical on all workers.
    estimator: dict[str, list[Tensor]] = field(default_factory=dict)
    tests: list[dict[str, Any]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)  # of the compression error
    sampled: int = -1  # the last sample's step // error_every
    # How codecs summed floats, for example "native"; one more entry whenever a resume changed it.
    codec_sums: list[Backend] = field(default_factory=list)

    @staticmethod
    def start(run: Run) -> Progress:
        device = run.replica.device
        timed = run.comm.processes == run.comm.workers
        return Progress(
            ledger=Ledger(run.comm.processes, timed, run.conditions),
            losses=torch.zeros(len(run.comm.local), dtype=torch.float64, device=device),
            first_bad=FirstBad.none(len(run.comm.local), device),
            kept=Kept(
                run.seed,
                run.replica.offsets,
                run.replica.shapes,
                len(run.estimator.messages(run)),
            ),
        )
