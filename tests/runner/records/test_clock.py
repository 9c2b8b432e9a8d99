"""The times of steps: which phase a lap belongs to, and how processes are averaged."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from gcbench.runner.records import clock
from gcbench.runner.records.clock import WARMUP_STEPS, Clock, Lap, Ledger, Span, _split_wait


def test_times_are_means_over_processes_and_an_exchange_is_the_shortest() -> None:
    ledger = Ledger(2)
    ledger.add(
        [
            [[Lap("forward", 1.0), Lap("exchange", 4.0)]],
            [[Lap("forward", 4.0), Lap("exchange", 2.0)]],
        ]
    )
    seconds = ledger.seconds()
    assert seconds is not None
    assert seconds["forward"] == {"mean": 2.5, "max": 4.0}
    assert seconds["exchange"] == {"mean": 2.0, "max": 2.0}
    assert seconds["wait"] == {"mean": 1.0, "max": 2.0}
    assert seconds["step"] == {"mean": 5.5, "max": 6.0} and ledger.elapsed() == 5.5


def test_coding_before_the_last_collective_is_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """PowerSGD, for example, encodes between its two exchanges."""
    now = count()
    monkeypatch.setattr(clock.time, "perf_counter", lambda: float(next(now)))
    watch = Clock(torch.device("cpu"))
    for _ in range(WARMUP_STEPS + 1):
        watch.lap("compress")
        for _ in range(2):
            with watch.exchange():
                pass
        watch.end_step()
    (laps,) = watch.take()
    names = ["encode", "exchange", "encode", "exchange", "decode"]
    assert laps == [Lap(name, 1.0) for name in names]


def test_what_is_waited_for_is_shown_and_the_rest_is_hidden() -> None:
    work = [Span("encode", 0.0, 1.0), Span("exchange", 1.0, 4.0), Span("decode", 4.0, 5.5)]
    laps = _split_wait(Span("await", 2.0, 6.0), work)
    shown = [Lap("encode", 0.0, 1.0), Lap("exchange", 2.0, 1.0), Lap("decode", 1.5)]
    assert laps == [*shown, Lap("wait", 0.5)]
    ledger = Ledger(1)
    ledger.add([[laps]])
    seconds = ledger.seconds()
    assert seconds is not None and seconds["step"]["mean"] == 4.0
    assert [seconds[k]["mean"] for k in ("hidden_coding", "hidden_exchange")] == [1.0, 1.0]


def test_times_begin_anew_but_go_on_elapsing() -> None:
    ledger = Ledger(1)
    ledger.add([[[Lap("encode", 3.0)]]])
    ledger.begin_anew()
    assert ledger.seconds() is None and ledger.elapsed() == 3
    ledger.add([[[Lap("encode", 1.0)]]])
    later = Ledger(1)
    later.load(ledger.state())
    seconds = later.seconds()
    assert seconds is not None and seconds["encode"]["mean"] == 1 and later.elapsed() == 4


def test_seconds_go_on_elapsing_with_another_number_of_processes() -> None:
    one, two, virtual = Ledger(1), Ledger(2), Ledger(1, timed=False)
    one.add([[[Lap("encode", 3.0)]]])
    two.load(one.state())
    assert two.seconds() is None and two.elapsed() == 3
    virtual.add([[[Lap("encode", 3.0)]]])
    assert virtual.elapsed() is None
    again = Ledger(2)
    again.load(virtual.state())
    again.add([[[Lap("encode", 1.0)]]] * 2)
    later = Ledger(2)
    later.load(again.state())
    seconds = later.seconds()
    assert seconds is not None and seconds["encode"]["mean"] == 1
    assert later.elapsed() is None  # nobody knows how long the virtual workers' steps would take


def test_phases_are_timed_under_one_set_of_conditions() -> None:
    slow = Ledger(1, conditions={"link": "slow", "threads": 1})
    slow.add([[[Lap("exchange", 3.0)]]])
    same, fast = (Ledger(1, conditions={"link": link, "threads": 1}) for link in ("slow", "fast"))
    assert same.load(slow.state()) == [] and same.seconds() == slow.seconds()
    assert fast.load(slow.state()) == ["link"]
    assert fast.seconds() is None and fast.elapsed() == 3
    slow.begin_anew(codecs="compiled")
    slow.add([[[Lap("encode", 1.0)]]])
    eager = Ledger(1, conditions={"link": "slow", "threads": 1})
    assert eager.load(slow.state()) == ["codecs"] and eager.elapsed() == 4
