"""Pipelines whose exchanges arrive in a later step: double buffering, delayed local steps."""

from __future__ import annotations

from concurrent.futures import Future

from torch import Tensor

from gcbench.core.compressor import Grads
from gcbench.runner.train.exchange_queue import ExchangeQueue, FinishedExchange, finish, state_of
from gcbench.runner.train.local_steps import LocalSteps
from gcbench.runner.train.run import ExchangeResult, Pipeline, Progress, Run


class UnderNextStep(Pipeline):
    """The pipeline of `trainer.double_buffering`: a step's exchange runs during the next step.

        x_{t+1} = x_t - lr_t update(g_{t-1}),   x_1 = x_0

    Every update comes one step late (the delay of Zinkevich, Smola, Langford, "Slow Learners are
    Fast", NIPS 2009), whatever the method; the last gradient is exchanged, but comes too late to be
    applied.
    """

    def __init__(self, queue: ExchangeQueue) -> None:
        self._queue = queue
        self._under_way: tuple[Future[FinishedExchange], Grads, int] | None = None

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        run.replica.swap_rows()
        return run.estimator.gradients(run, progress)

    def exchange(self, run: Run, progress: Progress) -> ExchangeResult | None:
        late = self._take(run, progress)
        self._submit(run, progress, run.replica.grads, progress.exchanges)
        return late

    def _take(self, run: Run, progress: Progress) -> ExchangeResult | None:
        """Return the exchange under way, for which this waits."""
        run.clock.lap("await")
        self.settle(run, progress)
        late, progress.late = progress.late, None
        return late

    def _submit(self, run: Run, progress: Progress, grads: Grads, number: int) -> None:
        self._queue.catch_up(run)
        future = self._queue.submit(run, grads, state_of(run, progress, grads), number)
        self._under_way = future, grads, progress.step
        progress.exchanges += 1

    def settle(self, run: Run, progress: Progress) -> None:
        if self._under_way is None:
            return
        future, grads, step = self._under_way
        out = self._queue.result(future, run)
        self._under_way = None
        progress.late = finish(run, progress, step, grads, out)

    def messages(self, run: Run) -> list[list[str]]:
        return run.estimator.messages(run)


class UnderLocalSteps(UnderNextStep):
    """The pipeline of `estimator.delay`: an exchange runs while workers take steps of their own.

    At most one is under way. The one that is under way at the end comes too late.
    """

    def __init__(self, queue: ExchangeQueue, steps: LocalSteps) -> None:
        super().__init__(queue)
        self._steps = steps

    def gradients(self, run: Run, progress: Progress) -> Tensor:
        return self._steps.gradients(run, progress)

    def exchange(self, run: Run, progress: Progress) -> ExchangeResult | None:
        arrives = self._steps.due_fragment(progress.step + 1 - self._steps.delay) is not None
        late = self._take(run, progress) if arrives else None
        # The rows are those of the next gradients, too.
        due = self._steps.due_gradients(run, progress)
        if grads := {name: rows.clone() for name, rows in due.items()}:
            number = progress.exchanges // self._steps.fragments
            self._submit(run, progress, grads, number)
        return late
