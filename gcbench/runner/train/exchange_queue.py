"""Exchanges of a run in the background, with their time and bits."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.side_stream import SideStream
from gcbench.core.compressor import Aggregated, Grads, State, Step, refuse_other_update
from gcbench.runner.records.clock import Clock, Marks
from gcbench.runner.train.run import ExchangeResult, Progress, Run


class FinishedExchange(NamedTuple):
    out: Aggregated
    marks: Marks
    meter_state: Any  # of the queue's meter, after this exchange


class ExchangeQueue:
    """A side stream that aggregates submitted gradients over `comm`."""

    def __init__(self, comm: Comm, clock: Clock, device: torch.device) -> None:
        self._comm = comm
        self._comm.clock = self._clock = clock.side_stream
        self._side = SideStream(device)

    def catch_up(self, run: Run) -> None:
        """Copy the run's meter to the queue's. Call it only while the queue is empty."""
        self._comm.meter.load(run.comm.meter.state())

    def submit(self, run: Run, grads: Grads, state: State, number: int) -> Future[FinishedExchange]:
        def work() -> FinishedExchange:
            self._clock.lap("compress")
            out = aggregate_in_run(run, grads, state, self._comm, number)
            return FinishedExchange(out, self._clock.stop(), self._comm.meter.state())

        return self._side.submit(work)

    def result(self, future: Future[FinishedExchange], run: Run) -> Aggregated:
        """Wait for an exchange and return its result; its bits and time are added to the run.

        Errors of the exchange are raised here.
        """
        out, marks, meter_state = self._side.result(future)
        for update in out.update.values():
            if update.is_cuda:
                update.record_stream(torch.cuda.current_stream())
        run.clock.add_awaited([marks])
        run.comm.meter.load(meter_state)
        return out


def aggregate_in_run(run: Run, grads: Grads, state: State, comm: Comm, number: int) -> Aggregated:
    """Return the aggregate of these gradients by the run's compressor, in exchange `number`.

    Raises MethodError for an update whose names or shapes do not match.
    """
    step = Step(number, run.seed, comm.local, run.replica.offsets, in_place=True)
    shapes = run.replica.shapes
    odd = [k for k, g in grads.items() if g.dim() != len(shapes[k]) + 1]  # 1-D convolutions
    shaped = grads | {k: grads[k].view(-1, *shapes[k]) for k in odd}
    with torch.no_grad():
        out = run.compressor.aggregate(shaped, state, comm, step)
    refuse_other_update(out.update, shaped)
    back = {k: out.update[k].view(1, *grads[k].shape[1:]) for k in odd}
    return out._replace(update=out.update | back)


def _is_whole(run: Run, grads: Grads) -> bool:
    return len(grads) == len(run.replica.grads)


def state_of(run: Run, progress: Progress, grads: Grads) -> State:
    """Return the compressor's state of the parameters of these gradients."""
    return progress.state if _is_whole(run, grads) else progress.state.select(grads.keys())


def finish(
    run: Run, progress: Progress, step: int, grads: Grads, out: Aggregated
) -> ExchangeResult:
    """Keep the state that an exchange of step `step` has left, and return its result."""
    whole = _is_whole(run, grads)
    progress.state = out.state if whole else progress.state.replace(out.state)
    progress.first_bad.note_exchange(step, out)
    exchanged = ExchangeResult.of(out, grads)
    # A part of the gradient has no bound that would be comparable with those of other steps.
    return exchanged if whole else exchanged._replace(shannon_bits=None)
