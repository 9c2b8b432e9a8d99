"""A virtual clock: how far workers of chosen speeds and absences come from exchange to exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from gcbench.core.comm.meter import Meter
from gcbench.core.comm.network import Link, Network, exchange_seconds
from gcbench.core.compressor import Compressor
from gcbench.core.fields import format_value
from gcbench.core.wrappers.virtual import remembers_workers
from gcbench.runner.settings.config import RunConfig

Absences = Sequence[tuple[Fraction, Fraction]]  # of a worker: from when, until when; sorted


@dataclass
class Passed:
    """How far the virtual clock of a run has come; a checkpoint holds it."""

    begin: Fraction = Fraction(0)  # of the present round, in seconds
    exchange: Fraction = Fraction(0)  # seconds of all exchanges before it
    steps: int = 0  # of workers, that were exchanged before it
    batches: int = 0  # of workers, since the last log line

    def state(self) -> tuple[str, str, int, int]:
        return str(self.begin), str(self.exchange), self.steps, self.batches

    @staticmethod
    def of_state(state: tuple[str, str, int, int]) -> Passed:
        begin, exchange, *counts = state
        return Passed(Fraction(begin), Fraction(exchange), *counts)


class Round(NamedTuple):
    """The steps from one exchange to the next."""

    end: Fraction  # when the exchange begins
    steps: tuple[int, ...]  # of each worker; 0: it is not in the exchange


@dataclass(frozen=True)
class VirtualClock:
    """The clock of `trainer.speeds`, which orders the steps, absences and exchanges of workers.

    Worker i takes s_i steps a second while it is present. A round of H steps (1 with
    `estimator=sgd`) from second b on ends at e with an exchange between the workers K:

        rounds=steps   those that are present at b take H steps each. One that leaves first, at
                       l_i, drops out: e = max_i min(b + H / s_i, l_i), K those still there at e
        rounds=clock   e = b + H / max_j s_j, K those that are there at e and have taken a step:
                       worker i, there since r_i, has taken floor(s_i (e - max(b, r_i))) steps

    The update is that of the mean over K, whatever their steps, as torchft divides by the
    participants of a quorum. Steps in proportion to speed are the dynamic local updates of Liu et
    al., "Asynchronous Local-SGD Training for Language Modeling", arXiv:2401.09135, here
    with a synchronous exchange. A difference of parameters already grows with the steps in it, so
    that a mean without weights counts each step once. All others, once they are back, go on from
    the shared parameters with the optimizer state that they had in their last exchange: what they
    have done since is lost. The next round begins when the exchange has taken the time of the cost
    model (`network=emulated`; none otherwise). If nobody is there at b, rounds of steps begin when
    the first worker is back.

    Seconds are fractions, so that no event is late by a rounding error. Between exchanges workers
    do not depend on each other: their steps in a round are spread over the H steps of the run, and
    a slower worker leaves out the batches and rates of the others.
    """

    speeds: tuple[Fraction, ...]
    absences: tuple[Absences, ...]
    every: int
    by_clock: bool
    link: Link | None

    @staticmethod
    def of(config: RunConfig) -> VirtualClock | None:
        """Return the clock of a run; None without `trainer.speeds`."""
        speeds, network = config.trainer.speeds, config.network
        if speeds is None:
            return None
        absences: list[list[tuple[Fraction, Fraction]]] = [[] for _ in speeds]
        for worker, begin, end in sorted(config.trainer.absences or []):
            absences[int(worker)].append((_exact(begin), _exact(end)))
        return VirtualClock(
            tuple(map(_exact, speeds)),
            tuple(map(tuple, absences)),
            config.estimator.get("every", 1),
            config.estimator.get("rounds") == "clock",
            Link(network.bits_per_second, network.latency_seconds) if network else None,
        )

    def round_from(self, begin: Fraction) -> Round:
        """Return the round that begins then."""
        if self.by_clock:
            end = begin + self.every / max(self.speeds)
            since = [max([begin, *(b for a, b in away if a < end)]) for away in self.absences]
            taken = [s * max(Fraction(0), end - r) for s, r in zip(self.speeds, since, strict=True)]
            return Round(end, tuple(map(math.floor, taken)))
        there_from = [_first_presence(away, begin) for away in self.absences]
        begin = min(there_from)
        leave = [min((a for a, _ in away if a > begin), default=math.inf) for away in self.absences]
        done = [begin + self.every / speed for speed in self.speeds]
        there = [worker for worker, since in enumerate(there_from) if since == begin]
        end = Fraction(max(min(done[i], leave[i]) for i in there))
        stay = {i for i in there if max(done[i], end) <= leave[i]}
        return Round(end, tuple(self.every if i in stay else 0 for i in range(len(self.speeds))))

    def stepping(self, begin: Fraction, step: int) -> list[int]:
        """Return the workers that step in step `step` of the run, in the round from `begin` on."""
        k, n = step % self.every, self.every
        steps = self.round_from(begin).steps
        return [i for i, taken in enumerate(steps) if taken * (k + 1) // n > taken * k // n]

    def seconds(self, begin: Fraction, step: int) -> Fraction:
        """Return the time after `step` steps of the run."""
        share = Fraction(step % self.every, self.every)
        return begin + share * (self.round_from(begin).end - begin)

    def exchange_seconds(self, workers: int, meter: Meter) -> Fraction:
        """Return the seconds of the collectives that `meter` has counted, in whole nanoseconds."""
        if self.link is None:
            return Fraction(0)
        network = Network(workers, 1, self.link, self.link)
        return Fraction(round(1e9 * exchange_seconds(meter.messages(), network)), 10**9)

    def possible_steps(self, until: Fraction) -> float:
        """Return the steps that all workers would take while present if they never waited."""
        return float(
            sum(
                speed * (until - _absent_seconds(away, until))
                for speed, away in zip(self.speeds, self.absences, strict=True)
            )
        )


def _exact(number: float) -> Fraction:
    return Fraction(str(number))


def _first_presence(away: Absences, second: Fraction) -> Fraction:
    """Return the first time from `second` on when the worker is present."""
    for begin, end in away:
        second = end if begin <= second < end else second
    return second


def _absent_seconds(away: Absences, until: Fraction) -> Fraction:
    absent, last = Fraction(0), Fraction(0)
    for begin, end in away:  # which may overlap
        absent += max(Fraction(0), min(end, until) - max(begin, last))
        last = max(last, end)
    return absent


def refuse_clock(
    config: RunConfig, processes: int, compressor: Compressor, shapes: Mapping[str, Sequence[int]]
) -> None:
    """Raise ValueError for speeds, absences or rounds that the run cannot have."""
    trainer, estimator = config.trainer, config.estimator
    choice, rounds = config.choices["estimator"], estimator.get("rounds")
    if trainer.speeds is None:
        typed = f"trainer.absences={format_value(trainer.absences)}" if trainer.absences else None
        if typed := typed or ("estimator.rounds=clock" if rounds == "clock" else None):
            raise ValueError(
                f"{typed}: only workers on a virtual clock have absences and rounds of seconds; "
                f"type trainer.speeds={format_value([1] * trainer.gpus)} too"
            )
        return
    typed = f"trainer.speeds={format_value(trainer.speeds)}"
    if len(trainer.speeds) != trainer.gpus:
        raise ValueError(
            f"{typed}: there are trainer.gpus={trainer.gpus} workers; type as many speeds"
        )
    if processes > 1:
        raise ValueError(
            f"{typed}: workers in processes have the speed of the machine; type "
            "trainer.launcher=virtual too"
        )
    streams = estimator.get("fragments", 1) > 1 or estimator.get("delay", 0)
    if choice not in ("sgd", "local_steps") or streams or trainer.double_buffering:
        raise ValueError(
            f"{typed}: on a virtual clock whole models are exchanged at the end of a round; type "
            "estimator=sgd or local_steps, without fragments, delay and double buffering"
        )
    if config.method.get("exchange") == "hierarchical":
        raise ValueError(f"{typed}: exchange=hierarchical has nodes; type another exchange=")
    least = min(trainer.speeds)
    needed = math.ceil(_exact(max(trainer.speeds)) / _exact(least))
    if rounds == "clock" and estimator["every"] < needed:
        raise ValueError(
            f"{typed}: the slowest worker takes no step in a round of estimator.every="
            f"{estimator['every']} of the fastest; type estimator.every={needed} or more"
        )
    _refuse_absences(trainer.absences or [], trainer.gpus, compressor, shapes)


def _refuse_absences(
    absences: Sequence[Sequence[float]],
    workers: int,
    compressor: Compressor,
    shapes: Mapping[str, Sequence[int]],
) -> None:
    typed = f"trainer.absences={format_value(absences)}"
    for absence in absences:
        if len(absence) != 3 or absence[0] not in range(workers) or absence[1] >= absence[2]:
            raise ValueError(
                f"{typed}: {format_value(absence)} is not a worker from 0 to {workers - 1}, the "
                "second when it leaves and a later one when it is back; type, for example, "
                "trainer.absences=[[0,10,20]]"
            )
    if absences and remembers_workers(compressor, shapes):
        raise ValueError(
            f"{typed}: the method remembers something of each worker, such as a residual, which "
            "has no meaning in an exchange without it; type compressor=none, or "
            "error_feedback=false"
        )
