"""Pipelines, which exchange gradients after a backward pass or during it, and the choice of one."""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import Tensor

from gcbench.core.compressor import Compressor, Grads, MethodError
from gcbench.core.library.exchange import ExchangeResult
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.settings.groups import TrainerSettings
from gcbench.runner.train.estimators import SGD
from gcbench.runner.train.local_steps import BetweenLocalSteps, LocalSteps
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.run import Estimator, Pipeline, Progress, Run

TURN_STEPS = 5  # steps per turn in the trial of `trainer.overlap=auto`
TURNS = 3  # timed turns with overlap, and without


class AfterBackward(Pipeline):
    """The default pipeline: the exchange follows the backward pass."""

    def exchange(self, run: Run, progress: Progress) -> ExchangeResult | None:
        if grads := run.estimator.due_gradients(run, progress):
            self.begin(run, progress, grads, beside=False)
        return self.take(run, progress)


class UnderNextStep(Pipeline):
    """The pipeline of `trainer.double_buffering`: a step's exchange runs during the next step.

        x_{t+1} = x_t - lr_t update(g_{t-1}),   x_1 = x_0

    Every update comes one step late (the delay of Zinkevich, Smola, Langford, "Slow Learners are
    Fast", NIPS 2009), whatever the method; the last gradient is exchanged, but comes too late to be
    applied.
    """

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        run.replica.swap_rows()
        return run.estimator.gradients(run, progress)

    def exchange(self, run: Run, progress: Progress) -> ExchangeResult | None:
        run.clock.lap("await")
        late = self.take(run, progress)
        self.begin(run, progress, run.replica.grads)
        return late


class UnderBackward(Pipeline):
    """The pipeline of `trainer.overlap`: a bucket is exchanged while others are still computed.

    Its exchange begins when its gradients are complete. DDP's buckets change after the first step
    of a process, which has a single one, so a method's state is selected by the names of
    parameters. A run that continues splits that one into those of its step before: it sends the
    same messages as if it had not been stopped. A method whose scope is a tensor
    gives the same update as without overlap, up to rounding: an all-reduce of another length adds
    in another order, and matrices are orthogonalized in other batches.
    """

    def __init__(self, replica: Replica, bucket_mib: float) -> None:
        self._names: list[list[str]] = []  # parameters per bucket, in the last step
        self._single: list[list[str]] | None = None  # the parts of DDP's single, first bucket
        self._at: tuple[Run, Progress] | None = None
        replica.hook_buckets(bucket_mib, self._begin_bucket)

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        self._at = (run, progress)
        self._names = []
        self._single = progress.buckets if self._single is None else []
        return run.estimator.gradients(run, progress)

    def _begin_bucket(self, grads: Grads) -> None:
        assert self._at is not None
        for names in self._single or [list(grads)]:
            self._names.append(names)
            self.begin(*self._at, {name: grads[name] for name in names})

    def exchange(self, run: Run, progress: Progress) -> ExchangeResult | None:
        run.clock.lap("await")
        arrived = {name for names in self._names for name in names}
        if missing := [name for name in run.replica.grads if name not in arrived]:
            raise MethodError(
                f"trainer.overlap=true: a bucket of gradients with that of {missing[0]} was not "
                "complete, as the loss does not depend on all parameters; type "
                "trainer.overlap=false"
            )
        progress.buckets = self._names
        return self.take(run, progress)

    def messages(self, run: Run) -> list[list[str]]:
        return self._names


class ByTrial(Pipeline):
    """The pipeline of `trainer.overlap=auto`: after the backward pass or during it.

    A trial alternates between the two in turns of a few steps, and the run stays with the faster:
    the ratio of their median times (a test may fall into a turn) is averaged over the processes. If
    the loss does not depend on all parameters, it stays with the exchange after the backward pass.
    Overlap need not be faster: if a backward pass leaves no core free, an exchange slows it down by
    as much as it hides.
    """

    def __init__(self, after: AfterBackward, under: UnderBackward) -> None:
        self._ways: dict[bool, Pipeline] = {False: after, True: under}
        self._seconds: dict[bool, list[float]] = {False: [], True: []}  # per turn
        self._overlaps = True  # flipped before the first turn
        self._decided = False
        self._steps = 0
        self._began = 0.0
        self._unused = False  # whether a step of this process had parameters without a gradient

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        if not self._decided and self._steps % TURN_STEPS == 0:
            self._end_turn(run, progress)
        self._steps += 1
        return self._ways[self._overlaps].gradients(run, progress)

    def exchange(self, run: Run, progress: Progress) -> ExchangeResult | None:
        self._unused = self._unused or bool(run.replica.unused)
        return self._ways[self._overlaps].exchange(run, progress)

    def messages(self, run: Run) -> list[list[str]]:
        if self._decided:
            return self._ways[self._overlaps].messages(run)
        return [*self._ways[False].messages(run), *self._ways[True].messages(run)]

    def _end_turn(self, run: Run, progress: Progress) -> None:
        if run.replica.device.type == "cuda":
            torch.cuda.synchronize(run.replica.device)
        now = time.perf_counter()
        if self._steps > 2 * TURN_STEPS:  # in the first turns DDP builds its buckets
            self._seconds[self._overlaps].append(now - self._began)
        self._overlaps = not self._overlaps
        # Their buckets would never be complete. Processes may have others, as with LayerDrop.
        if any(run.control.gather(self._unused)):
            self._overlaps, self._decided = False, True
        elif len(self._seconds[True]) == TURNS:
            self._decided = True
            ratios = run.control.gather(median(self._seconds[True]) / median(self._seconds[False]))
            self.overlap_ratio = sum(ratios) / len(ratios)
            self._overlaps = self.overlap_ratio < 1
            # From now on phases are timed for the chosen way only.
            progress.ledger.add(run.control.gather(run.clock.take()))
            progress.ledger.begin_anew()
        run.replica.use_hook(self._overlaps)
        self._began = now


def exchanges_in_background(config: RunConfig) -> bool:
    """Return whether exchanges run in the background, and so need a process group of their own."""
    trainer = config.trainer
    return bool(trainer.overlap or trainer.double_buffering or config.estimator.delay)


def make_pipeline(
    settings: TrainerSettings, replica: Replica, estimator: Estimator, may_overlap: bool
) -> Pipeline:
    """Return the pipeline that the settings ask for.

    `may_overlap` says whether an exchange can run during its backward pass.
    """
    if isinstance(estimator, LocalSteps):
        return BetweenLocalSteps(estimator)
    if settings.double_buffering:
        return UnderNextStep()
    if not settings.overlap or not may_overlap:
        return AfterBackward()
    under = UnderBackward(replica, settings.bucket_mib)
    return under if settings.overlap is True else ByTrial(AfterBackward(), under)


def refuse_pipeline(
    settings: TrainerSettings, compressor: Compressor, estimator: Estimator, alone: bool
) -> None:
    """Raise ValueError where exchanges cannot run in the background as the settings ask.

    `alone` says whether every worker has its own process.
    """
    if settings.overlap is True and settings.double_buffering:
        raise ValueError(
            "trainer.overlap=true trainer.double_buffering=true: an exchange runs under its own "
            "backward pass, or under the next step; type only one"
        )
    if settings.double_buffering and not isinstance(estimator, SGD):
        raise ValueError(
            "trainer.double_buffering=true: only plain gradients are exchanged that way; type "
            "estimator=sgd"
        )
    if settings.overlap is True and (obstacle := overlap_obstacle(compressor, estimator, alone)):
        raise ValueError(obstacle)


def overlap_obstacle(compressor: Compressor, estimator: Estimator, alone: bool) -> str | None:
    """Return the sentence why no exchange can run during its backward pass, or None if one can."""
    if not isinstance(estimator, SGD):
        return (
            "trainer.overlap=true: only plain gradients are exchanged that way; type estimator=sgd"
        )
    if not alone:
        return (
            "trainer.overlap=true: virtual workers have no exchange that could be hidden; type "
            "trainer.launcher=local with at least trainer.workers=2, or trainer.overlap=false"
        )
    if compressor.properties.scope == "global":
        return (
            "trainer.overlap=true sends tensors as their gradients arrive, and this method must "
            "see all of them at once (its scope is global, see gcbench methods NAME); type "
            "trainer.double_buffering=true, which hides any method's exchange, or "
            "trainer.overlap=false"
        )
    return None
