"""Exchanges of gradients by a compressor: where they run, what they keep, and what they sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gcbench.core.codecs.launches import is_fused
from gcbench.core.codecs.noise import count
from gcbench.core.comm import collectives
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.meter import Meter, row_bits
from gcbench.core.comm.side_stream import SideStream
from gcbench.core.comm.transport import group_beside, transport_of
from gcbench.core.compressor import (
    Aggregated,
    Compressor,
    Goal,
    Grads,
    State,
    Step,
    flatten_each,
    merge,
    offsets_of,
    refuse_other_update,
    sizes_of,
)
from gcbench.core.deviation import Deviation
from gcbench.core.library.agreement import (
    agree,
    blank,
    choose,
    not_finite,
    refuse_difference,
    replace_each,
)
from gcbench.core.library.overlap import split_nodes
from gcbench.core.methods.dense import Dense
from gcbench.core.parameters import Shape
from gcbench.core.wrappers.wrappers import CheckedGradients

T = TypeVar("T")


class ExchangeResult(NamedTuple):
    """The result of an exchange: the update, and what its samples are computed from.

    `goal()` returns what was to be coded. `shannon_bits()` returns the Shannon bound of the codes,
    `[w]`; it is None where no codes were gathered, and for a part of all gradients.
    """

    update: Grads
    goal: Callable[[], Goal]
    shannon_bits: Callable[[], Tensor] | None

    def give(self, parameters: Mapping[str, nn.Parameter], copy: bool = False) -> None:
        """Make the update the gradients of these parameters; those without one have None.

        A `copy` stays as it is whatever an optimizer does to gradients.
        """
        for name, p in parameters.items():
            update = self.update.get(name)
            p.grad = None if update is None else update[0].to(p.dtype, copy=copy)


@dataclass
class Kept:
    """The compressor's state of gradients that are exchanged again and again, and how often it was.

    Where only some of the gradients are sent at once, the state is that of all.
    """

    seed: int
    offsets: Mapping[str, int] | None = None  # of all tensors, where only some are sent at once
    shapes: Mapping[str, Shape] = field(default_factory=dict)  # where those of rows are others
    messages: int = 1  # in which all of them are sent, one after the other
    exchanges: int = 0
    state: State = field(default_factory=State)
    late: ExchangeResult | None = None  # has arrived, and is still to be applied

    @property
    def number(self) -> int:
        """Return how many times each gradient has been exchanged."""
        return self.exchanges // self.messages

    def of(self, names: Collection[str]) -> State:
        """Return the state of the parameters of these names."""
        return self.state if self.is_whole(names) else self.state.select(names)

    def add(self, names: Collection[str], state: State) -> None:
        """Keep the newer state of the parameters of these names."""
        self.state = state if self.is_whole(names) else self.state.replace(state)

    def is_whole(self, names: Collection[str]) -> bool:
        return self.offsets is None or len(names) == len(self.offsets)


class Bucket(NamedTuple):
    """Gradients that are exchanged together, and where they are."""

    places: Grads  # what holds gradients `[1, ...]`, then updates
    copied: Sequence[str]  # whose gradients have another type or layout than rows
    buffers: Sequence[Tensor]  # rows `[1, n]` that have all of them


class Laps(collectives.Clock, Protocol):
    """A clock of one thread, which tells coding from collectives."""

    def lap(self, name: str) -> None:
        """End the current lap and begin `name`."""

    def stop(self) -> Any:
        """End the current lap, and return what was timed since the last stop."""


class Clock(Laps, Protocol):
    """A clock of steps, with one for a thread beside them."""

    @property
    def side_stream(self) -> Laps: ...

    def add_awaited(self, work: Sequence[Any]) -> None:
        """Add what `side_stream` has timed to the step that has waited for it."""


class NoClock(collectives.NoClock):
    """A clock that times nothing."""

    @property
    def side_stream(self) -> NoClock:
        return self

    def lap(self, name: str) -> None: ...

    def stop(self) -> None: ...

    def add_awaited(self, work: Sequence[Any]) -> None: ...


class _Current:
    """The clock of `comm`, and of its nodes: that of where the exchange under way runs."""

    def __init__(self, laps: Laps) -> None:
        self.laps = laps

    def exchange(self) -> AbstractContextManager[Any]:
        return self.laps.exchange()


class _Done(NamedTuple):
    """The value of work beside the computation, its times, and the meter's totals after it."""

    value: Any
    marks: Any
    totals: Any


class Exchange:
    """A compressor's exchanges over `comm`, of one row per worker in this process, `[w, ...]`.

    They follow the computation, or run beside it in a stream of their own. Processes of a `group`
    agree on whether all values were finite, and else keep their state and get an update of NaN.
    `meter` has the bits of exchanges that have arrived, and so does not depend on chance.
    """

    def __init__(
        self,
        compressor: Compressor,
        comm: Comm,
        device: torch.device,
        *,
        group: dist.ProcessGroup | None = None,
        error_every: int | None = None,
        clock: Clock | None = None,
        beside: bool = False,
        in_place: bool = False,
    ) -> None:
        """Take what carries exchanges; `beside` others, `comm` needs a group of its own.

        With `in_place`, a state's tensors may be overwritten.
        """
        self.compressor, self.comm, self.group = compressor, comm, group
        self.meter = comm.meter
        self._clock: Clock = clock or NoClock()
        comm.clock = self._current = _Current(self._clock)
        self._device, self._in_place = device, in_place
        self._error_every = error_every
        self._deviation: tuple[int, Deviation] | None = None  # of the exchange of a number
        self._own_group = False
        self._side: SideStream | None = None
        self._under_way: list[tuple[Future[Any], Grads]] = []
        # What `judge` found, and as much of it as has reached the host, which never waits for it.
        self._verdict = torch.zeros(1, dtype=torch.int64, device=device)
        self._arrived_verdict = torch.zeros(
            1, dtype=torch.int64, pin_memory=device.type == "cuda" and torch.cuda.is_available()
        )
        if beside:
            self._go_beside()

    def _go_beside(self) -> None:
        split_nodes(self.comm, self.compressor)
        self._side = SideStream(self._device)
        self.meter = Meter.of_workers(len(self.comm.local))

    def take_own_group(self) -> None:
        """Run beside the computation from now on, in a process group of its own."""
        assert self.group is not None
        self.group, self._own_group = group_beside(self.group), True
        self.comm.transport = self.comm.transport and transport_of(self.group, self._device)
        self._go_beside()

    def close(self) -> None:
        """End the stream and the group that were made for this."""
        if self._side:
            self._side.close()
        if self._own_group and dist.is_initialized():  # else the user has ended all groups
            dist.destroy_process_group(self.group)

    def load_meter(self, totals: Any) -> None:
        """Go on counting from these totals."""
        for meter in (self.comm.meter, self.meter):
            meter.load(totals)

    def submit(self, work: Callable[[], T], beside: bool = True) -> Future[T]:
        """Do `work`, which may exchange, beside the computation if that is possible, or now."""
        if self._side is None or not beside:
            self._current.laps = self._clock
            self._clock.lap("compress")
            done: Future[Any] = Future()
            done.set_result(work())
            if self.meter is not self.comm.meter:
                self.meter.load(self.comm.meter.state())
            return done
        laps = self._clock.side_stream

        def timed() -> Any:
            self._current.laps = laps
            laps.lap("compress")
            value = work()
            return _Done(value, laps.stop(), self.comm.meter.state())

        return self._side.submit(timed)

    def result(self, future: Future[T]) -> T:
        """Wait for work and return its result; its time and bits count from now on.

        Errors of the work are raised here.
        """
        done: Any = self._side.result(future) if self._side else future.result()
        if not isinstance(done, _Done):
            return done
        self._clock.add_awaited([done.marks])
        self.meter.load(done.totals)
        if isinstance(done.value, Aggregated):
            for update in done.value.update.values():
                if update.is_cuda:
                    update.record_stream(torch.cuda.current_stream())
        return done.value

    def begin(self, kept: Kept, rows: Grads, beside: bool = True) -> None:
        """Begin to exchange rows, `[w, ...]`, which do not change until they have arrived."""
        exchange = self.aggregate_finite if self.group else self.aggregate
        self._under_way.append((self.submit(lambda: exchange(kept, rows), beside), rows))

    def settle(self, kept: Kept) -> Aggregated | None:
        """Wait for what is under way, and keep its state; return it, or None if nothing is."""
        if not self._under_way:
            return None
        outs = [self.result(future) for future, _ in self._under_way]
        rows = {name: x for _, part in self._under_way for name, x in part.items()}
        self._under_way = []
        if len(outs) == 1:
            (out,) = outs
        else:
            rows = {name: rows[name] for name in kept.offsets or rows}
            out = merge(outs, rows)
        kept.exchanges += 1
        kept.add(rows, out.state)
        # A part of the gradient has no bound that would be comparable with those of other steps.
        bound = out.shannon_bits if kept.is_whole(rows) else None
        kept.late = ExchangeResult(out.update, out.goal_of(rows), bound)
        return out

    def take(self, kept: Kept) -> ExchangeResult | None:
        """Return what has arrived and was not taken yet, for which this waits."""
        self.settle(kept)
        late, kept.late = kept.late, None
        return late

    def aggregate(self, kept: Kept, rows: Grads, like: Grads | None = None) -> Aggregated:
        """Return the aggregate of all workers' rows; its state is not kept yet.

        The update has the shapes of `rows`, or else those of `like`. Raises MethodError for one
        whose names or shapes do not match.
        """
        odd = [
            k for k, x in rows.items() if k in kept.shapes and x.dim() != len(kept.shapes[k]) + 1
        ]
        shaped = rows | {k: rows[k].view(-1, *kept.shapes[k]) for k in odd}  # 1-D convolutions
        step = self._step(kept, shaped)
        # A backward pass may run under autocast.
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            out = self.compressor.aggregate(shaped, kept.of(rows), self.comm, step)
        self._look_at(kept, out, shaped, like)
        if odd:
            back = {k: out.update[k].view(1, *rows[k].shape[1:]) for k in odd}
            out = out._replace(update=out.update | back)
        return out

    def aggregate_finite(self, kept: Kept, rows: Grads, like: Grads | None = None) -> Aggregated:
        """Return the aggregate, with the update and the state that `_choose` leaves."""
        out = self.aggregate(kept, rows, like)
        updates = [*out.update.values()]
        bad = not_finite([*rows.values(), *updates])
        return out._replace(state=self._choose(kept, rows, out.state, bad, updates)[0])

    def replace(self, kept: Kept, part: Bucket) -> tuple[State, Tensor]:
        """Replace one worker's gradients by their update; `keep` takes what is returned.

        That is the new state, and whether a value was not finite.
        """
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            rows = part.places | {
                k: part.places[k].float().contiguous().view(1, *kept.shapes[k]) for k in part.copied
            }
            step = self._step(kept, rows)
            out = self.compressor.aggregate(rows, kept.of(rows), self.comm, step)
            self._look_at(kept, out, rows)
            if not part.copied and is_fused(part.buffers[0]):
                updates = {name: out.update[name] for name in rows}
                return out.state, replace_each(flatten_each(rows), flatten_each(updates))
            bad = not_finite([*part.buffers, *out.update.values()])
            # PyTorch copies all tensors at once only if none has another type or layout.
            for names in ([k for k in rows if k not in part.copied], part.copied):
                if names:
                    places = [part.places[k] for k in names]
                    pairs = zip(names, places, strict=True)
                    torch._foreach_copy_(places, [out.update[k].view(x.shape) for k, x in pairs])
            if any(x.dtype != torch.float32 for x in part.buffers):  # it may be too large there
                bad |= not_finite(part.buffers)
        return out.state, bad

    def begin_mean(self, tensors: Sequence[Tensor], dtype: torch.dtype) -> Mean:
        """Begin to replace one worker's tensors by their mean, which is summed in this type."""
        assert self.group is not None
        return Mean(tensors, dtype, self.group, self.meter)

    def keep(
        self,
        kept: Kept,
        names: Collection[str],
        replaced: Sequence[tuple[State, Tensor]],
        written: Sequence[Tensor],
        earlier: Sequence[Tensor] | None = None,
        used: Mapping[str, bool] | None = None,
    ) -> list[str]:
        """Keep what `replace` returned of all parts of an exchange; return what none has `used`.

        Updates of parameters with these names were `written` there, and are added to `earlier`
        ones; that of a parameter which no worker has used is dropped, and so is its new state.
        """
        states, flags = zip(*replaced, strict=True)
        state, bad = reduce(State.replace, states), reduce(torch.logical_or, flags)
        with torch.no_grad():
            chosen, unused = self._choose(kept, names, state, bad, written, earlier, used)
        kept.add(names, chosen)
        return unused

    def _choose(
        self,
        kept: Kept,
        names: Collection[str],
        state: State,
        bad: Tensor,
        written: Sequence[Tensor],
        earlier: Sequence[Tensor] | None = None,
        used: Mapping[str, bool] | None = None,
    ) -> tuple[State, list[str]]:
        """Return the state to keep of these parameters, and the names of what no worker has used.

        This is what happens to values that are not finite. Where a process of the group has seen
        a `bad` one, what all have `written` becomes NaN, so that a GradScaler finds it, and the
        state stays as it was: some methods code an overflow as they code any other value, such as
        signs, or do not send it in this step. A run has no group: it ends at the first such value
        of any worker, in a gradient, a residual or an update, and keeps no state from there on.

        A GPU decides that itself, and the host does not wait for it unless `used` is told, or the
        state that is chosen has other tensors than before, as in the first exchange.

        Raises:
            ConfigError: if they have made different numbers of exchanges, or have different
                `earlier` updates, where None stands for any. On a GPU in a later exchange.
        """
        unused: list[str] = []
        if self.group is not None:
            number = count(kept.seed, kept.number + 1, self._device)
            bad, unused = agree(bad, number, earlier, used, self.group, self._verdict)
            self._arrived_verdict.copy_(self._verdict, non_blocking=True)
            self._refuse_difference()
        blank(written, bad)
        if unused:
            state = state.replace(kept.state.select(unused))
        return choose(bad, kept.of(names), state), unused

    def _refuse_difference(self) -> None:
        refuse_difference(int(self._arrived_verdict), self.comm.local.start)

    def _step(self, kept: Kept, rows: Grads) -> Step:
        offsets = kept.offsets or offsets_of(sizes_of(rows))
        return Step(kept.number, kept.seed, self.comm.local, offsets, self._in_place)

    def _look_at(self, kept: Kept, out: Aggregated, rows: Grads, like: Grads | None = None) -> None:
        """Refuse an update that does not match, and measure one that is due.

        That takes an all-reduce, which no meter counts.
        """
        refuse_other_update(out.update, like or rows)
        if self._error_every and kept.number % self._error_every == 0:
            measured = Deviation.of(out.goal_of(rows)(), self.comm, self._total)
            if self._deviation and self._deviation[0] == kept.number:
                measured = measured.plus(self._deviation[1])
            self._deviation = kept.number, measured

    def _total(self, x: Tensor) -> Tensor:
        if self.comm.transport is not None:
            self.comm.transport.all_reduce(x, "sum")
        return x

    def measured(self, what: str) -> float:
        """Return the `relative` error or the `cosine` that was measured last; NaN before."""
        if self._deviation is None:
            return math.nan
        return self._deviation[1].measured(self.compressor).get(what, math.nan)


def type_of_means(compressor: Compressor) -> torch.dtype | None:
    """Return the type in which one all-reduce is all that a method does; None for other methods."""
    inner = compressor.inner if isinstance(compressor, CheckedGradients) else compressor
    if not isinstance(inner, Dense) or not inner.is_one_all_reduce:
        return None
    dtype: torch.dtype = getattr(torch, inner.dtype)
    return dtype


class Mean(Future[tuple[State, Tensor]]):
    """A mean over all workers that is under way, and will be in the place of `tensors`."""

    @torch.no_grad()
    def __init__(
        self,
        tensors: Sequence[Tensor],
        dtype: torch.dtype,
        group: dist.ProcessGroup,
        meter: Meter,
    ) -> None:
        """Begin the mean that `Dense` makes of this worker's fp32 gradients."""
        super().__init__()
        self._tensors, self._workers = tensors, group.size()
        in_place = len(tensors) == 1 and tensors[0].dim() == 1
        whole = tensors[0] if in_place else torch.cat([x.flatten() for x in tensors])
        self._wire = whole if dtype == torch.float32 else whole.to(dtype).div_(self._workers)
        bits = row_bits([self._wire.view(1, -1)])
        meter.count_equal("all_reduce", self._workers, bits, bits)
        self._work = dist.all_reduce(self._wire, group=group, async_op=True)

    @torch.no_grad()
    def result(self, timeout: float | None = None) -> tuple[State, Tensor]:
        """Wait for it; return a state, which is empty, and whether a value is not finite."""
        self._work.wait()
        if self._wire.dtype == torch.float32:
            self._wire.div_(self._workers)
        parts = self._wire.split([x.numel() for x in self._tensors])
        for x, part in zip(self._tensors, parts, strict=True):
            if x is not self._wire:
                x.copy_(part.view(x.shape))
        return State(), not_finite([x.view(1, -1) for x in parts])
