"""A virtual clock against a replay of its events, one by one, and runs on it."""

from __future__ import annotations

import heapq
import json
import math
import random
from copy import deepcopy
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from inner_cases import W, build, shared, take_steps
from nightly import each
from sentence import run, untimed_metrics
from torch import Tensor

from gcbench.runner.train.estimators import batch_of
from gcbench.runner.train.run import Run
from gcbench.runner.train.tasks import loss_of
from gcbench.runner.train.virtual_clock import VirtualClock

H = 4
DENSE = ("compressor=none", "schedule=constant")
LOCAL = (*DENSE, "estimator=local_steps", f"estimator.every={H}")
BY_CLOCK = (*LOCAL, "estimator.rounds=clock")
SPEEDS = "trainer.speeds=[10,10,8,5]"
# No worker leaves at an exchange: the replay, which adds floats, could take either first.
AWAY = [[0, 0.36, 0.52], [1, 0.7, 1.3], [1, 2.01, 2.05], [2, 1.05, 1.25], [3, 0.11, 0.93]]


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
        candidates = {i for i in range(W) if there[i]}
        while True:
            if not by_clock and all(taken[i] == every or not there[i] for i in candidates):
                break
            now, kind, i = heapq.heappop(events)
            if kind == tick:
                break
            if (
                kind == done
                and there[i]
                and math.isclose(now, since[i] + (taken[i] + 1) / speeds[i])
            ):
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
    for _ in range(60):
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
    assert partial > 100


def trained(
    run: Run, rounds: list[tuple[float, list[int]]], every: int, local: bool
) -> dict[str, Tensor]:
    """Return the shared parameters in float64 after these rounds, from scalar rules alone.

    Worker i takes n of the `every` steps of a round: step k, from 1, if floor(n k / every) grows.
    """
    models = [deepcopy(run.replica.model).double() for _ in range(W + 1)]  # the last is shared
    inner = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    xs = [p.detach() for p in models[W].parameters()]
    velocities = [torch.zeros_like(x) for x in xs]
    for number, (_, steps) in enumerate(rounds):
        sent = []
        for worker, n in enumerate(steps):
            own = [p.detach() for p in models[worker].parameters()]
            for mine, x in zip(own, xs, strict=True):
                mine.copy_(x)
            for k in range(1, every + 1):
                if n * k // every == n * (k - 1) // every:
                    continue
                inputs, targets = batch_of(run, number * every + k - 1, worker)
                inner[worker].zero_grad()
                outputs = models[worker](inputs.double())
                loss_of("classification", outputs, targets).backward()
                inner[worker].step()
            if n:
                sent.append([x - mine for x, mine in zip(xs, own, strict=True)])
        for x, velocity, *differences in zip(xs, velocities, *sent, strict=True):
            if not differences:
                continue
            mean = sum(differences) / len(differences)
            velocity.mul_(0.9).add_(mean)
            x -= 0.7 * (mean + 0.9 * velocity) if local else mean
    return {k: p.detach() for k, p in models[W].named_parameters()}


@each(("typed", "every", "by_clock"), [(DENSE, 1, False), (LOCAL, H, False), (BY_CLOCK, H, True)])
def test_a_run_is_what_the_replay_says(
    typed: tuple[str, ...],
    every: int,
    by_clock: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Who is not there contributes nothing; who is back goes on from what all share."""
    sgd = ("optimizer.lr=0.1", "optimizer.momentum=0", "optimizer.weight_decay=0")
    away = f"trainer.absences={AWAY}".replace(" ", "")
    built = build(tmp_path_factory.mktemp("run"), *typed, *sgd, SPEEDS, away)
    rounds = replay([10, 10, 8, 5], AWAY, every, by_clock, 0.0)
    expected = trained(built[0], rounds, every, local=every > 1)
    take_steps(built, 10 * every)
    for name, value in shared(built[0]).items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=1e-5)
    assert len({tuple(steps) for _, steps in rounds}) > 2
    assert built[1].virtual.steps == sum(sum(steps) for _, steps in rounds)
    sent = [bits // (32 * len(built[0].replica.flat[0])) for bits in built[0].comm.meter.sent_bits]
    assert sent == [sum(steps[i] > 0 for _, steps in rounds) for i in range(W)]


@each(
    ("typed", "clock"),
    [
        (("compressor=qsgd", "error_feedback=true", "optimizer=adamw"), ()),
        (("compressor=powersgd", *LOCAL[2:]), ()),
        (
            ("compressor=scaled_sign", "error_feedback=true", "min_size=0", *LOCAL[2:]),
            ("estimator.rounds=clock",),
        ),
    ],
)
def test_equal_speeds_and_no_absence_change_no_bit(
    typed: tuple[str, ...], clock: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folders = [tmp_path_factory.mktemp(name) for name in ("plain", "virtual")]
    typed += ("trainer.gpus=4", "trainer.max_steps=12", "trainer.launcher=virtual")
    typed += ("trainer.log_every=5", "trainer.error_every=3", "trainer.checkpoint_steps=6")
    plain = run(folders[0], *typed)
    virtual = run(folders[1], *typed, *clock, "trainer.speeds=[3,3,3,3]")
    assert untimed_metrics(folders[0]) == untimed_metrics(folders[1])
    one, other = (torch.load(folder / "weights.pt", weights_only=True) for folder in folders)
    assert all(torch.equal(one[name], other[name]) for name in one)
    for key in ("test", "bits_sent", "bits_wire", "compression_error", "collectives"):
        assert plain[key] == virtual[key]
    assert plain["virtual_time"] is None
    assert virtual["virtual_time"]["seconds"] == 12 / 3
    assert virtual["virtual_time"]["useful_share"] == 1


def test_a_step_takes_the_slowest_worker_that_is_there_and_the_exchange(tmp_path: Path) -> None:
    """The slow worker is there from second 0 to 1 and from 2.5 on."""
    link = ("network=emulated", "network.bandwidth=1mbit", "network.latency=1ms")
    away = "trainer.absences=[[3,1,2.5]]"
    result = run(
        tmp_path,
        *DENSE,
        *link,
        "trainer.speeds=[10,10,8,4]",
        away,
        *("trainer.gpus=4", "trainer.max_steps=20", "trainer.launcher=virtual"),
        "trainer.log_every=1",
    )
    n = result["parameters"]

    def exchange(workers: int) -> float:
        return 2 * (workers - 1) * (32 * n / workers / 1e6 + 1e-3)

    now, expected, samples = 0.0, [], 0
    for _ in range(20):
        there = not 1 <= now < 2.5
        if there and now < 1 < now + 1 / 4:  # it leaves in this step
            now, samples = max(1.0, now + 1 / 8) + exchange(3), samples + 3
        else:
            now += (1 / 4 + exchange(4)) if there else (1 / 8 + exchange(3))
            samples += 3 + there
        expected.append(now)
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    train = [line for line in lines if line["event"] == "train"]
    assert [line["seconds"] for line in train] == pytest.approx(expected, abs=1e-6)
    # Means over those that took the step: with zeros for others, they would fall by a quarter.
    assert all(b["loss"] > 0.85 * a["loss"] for a, b in pairwise(train[:12]))
    found = result["virtual_time"]
    assert found["goodput"] == pytest.approx(16 * samples / now)
    possible = (10 + 10 + 8) * now + 4 * (now - 1.5)
    assert found["useful_share"] == pytest.approx(samples / possible)
    assert 0 < found["exchange_seconds"] < now


def test_a_round_without_anybody_exchanges_nothing(tmp_path: Path) -> None:
    """Rounds of steps wait for the first worker that is back."""
    everybody = ",".join(f"[{i},0,{2 + i}]" for i in range(W))
    built = build(tmp_path, *LOCAL, SPEEDS, f"trainer.absences=[{everybody}]")
    take_steps(built, H)
    assert built[1].virtual.begin == Fraction(2) + Fraction(H, 10)
    assert built[1].virtual.steps == H
    by_clock = build(tmp_path, *BY_CLOCK, SPEEDS, f"trainer.absences=[{everybody}]")
    before = shared(by_clock[0])
    take_steps(by_clock, H)
    assert all(torch.equal(x, before[name]) for name, x in shared(by_clock[0]).items())
    assert by_clock[1].exchanges == by_clock[1].virtual.steps == 0
