"""A virtual clock against a replay of its events, one by one, and runs on it."""

from __future__ import annotations

import heapq
import math
import random
from copy import deepcopy
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from inner_cases import W, build, shared, take_steps
from nightly import each
from torch import Tensor

from gcbench.comm.network import Link, Network
from gcbench.train.estimators import batch_of
from gcbench.train.run import Progress, Run
from gcbench.train.tasks import loss_of
from gcbench.train.virtual_clock import VirtualClock

H = 4
DENSE = ("compressor=none", "schedule=constant")
LOCAL = (*DENSE, "estimator=local_steps", f"estimator.every={H}")
BY_CLOCK = (*LOCAL, "estimator.rounds=clock")
SPEEDS = "trainer.speeds=[10,10,8,5]"
AWAY = "trainer.absences=[[0,0.35,0.5],[1,0.7,1.3],[1,2,2.05],[2,1.05,1.25],[3,0.1,0.9]]"


def replay(
    speeds: list[float], absences: list[list[float]], every: int, by_clock: bool, exchange: float
) -> list[tuple[float, list[int]]]:
    """Return (end, contributed steps) of ten rounds, by taking events from a queue in their order.

    In order of time, then: a step is done, a worker leaves, one is back, the exchange of seconds.
    """
    done, left, back, tick = range(4)
    rounds, begin = [], 0.0
    for _ in range(10):
        there = [not any(w == i and a <= begin < b for w, a, b in absences) for i in range(W)]
        if not by_clock and not any(there):  # wait for the first one to be back
            firsts = [b for _, a, b in absences if a <= begin < b]
            begin = min(firsts)
            there = [not any(w == i and a <= begin < b for w, a, b in absences) for i in range(W)]
        taken, since = [0] * W, [begin] * W
        events = [(begin + 1 / s, done, i) for i, s in enumerate(speeds) if there[i]]
        events += [(a, left, int(w)) for w, a, _ in absences if a > begin]
        events += [(b, back, int(w)) for w, _, b in absences if b > begin]
        if by_clock:
            events.append((begin + every / max(speeds), tick, -1))
        heapq.heapify(events)
        candidates = set(i for i in range(W) if there[i])
        while True:
            if not by_clock and all(taken[i] == every or not there[i] for i in candidates):
                break
            now, kind, i = heapq.heappop(events)
            if kind == tick:
                break
            if kind == done and there[i] and math.isclose(now, since[i] + (taken[i] + 1) / speeds[i]):
                taken[i] += 1
                if by_clock or taken[i] < every:
                    heapq.heappush(events, (since[i] + (taken[i] + 1) / speeds[i], done, i))
            elif kind == left and (by_clock or i in candidates):
                there[i], taken[i] = False, 0
            elif kind == back and by_clock:
                there[i], since[i] = True, now
                heapq.heappush(events, (now + 1 / speeds[i], done, i))
        end = begin + every / max(speeds) if by_clock else now
        rounds.append((end, [n if there[i] else 0 for i, n in enumerate(taken)]))
        begin = end + (exchange if any(rounds[-1][1]) else 0)
    return rounds


def clock_of(
    speeds: list[float], absences: list[list[float]], every: int, by_clock: bool
) -> VirtualClock:
    def exact(x: float) -> Fraction:
        return Fraction(str(x))

    away = [sorted((exact(a), exact(b)) for w, a, b in absences if w == i) for i in range(W)]
    return VirtualClock(tuple(map(exact, speeds)), tuple(map(tuple, away)), every, by_clock, None)


@each("by_clock", [False, True])
def test_rounds_are_those_of_a_queue_of_events(by_clock: bool) -> None:
    """Times are multiples of odd fractions, so that no two events meet but by intent."""
    draw = random.Random(1)
    partial = 0
    for _ in range(200):
        speeds = [draw.choice([2.0, 3.0, 5.0, 7.0]) for _ in range(W)]
        absences = []
        for worker in range(W):
            at = 0.0
            for _ in range(draw.randrange(5)):
                leaves = round(at + draw.random() * 3 + 0.0137, 4)
                at = round(leaves + draw.random() * 2 + 0.0173, 4)
                absences.append([worker, leaves, at])
        every = draw.choice([1, 4, 9])
        clock = clock_of(speeds, absences, every, by_clock)
        begin = Fraction(0)
        for end, steps in replay(speeds, absences, every, by_clock, 0.0113):
            found = clock.round_from(begin)
            assert float(found.end) == pytest.approx(end)
            assert [*found.steps] == steps
            partial += len({*steps}) > 1
            begin = found.end + (Fraction("0.0113") if any(steps) else 0)
    assert partial > 300
