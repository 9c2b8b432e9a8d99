"""Times of methods, measured with a clock that the test sets."""

from __future__ import annotations

import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lib import turns as steps
from lib.turns import BASELINE, message_seconds, time_rows
from method_cases import build_method
from torch import nn

from gcbench.runner.bench import timing
from gcbench.runner.bench.local import Input, _row, measure
from gcbench.runner.bench.timing import Timing, cpu_beside_one_thread, time_beside_copy
from gcbench.runner.control import LocalControl


def test_a_work_four_times_as_long_as_a_copy_is_a_quarter_as_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = iter([1e-6, 4e-6] * 5)
    monkeypatch.setattr(timing, "seconds", lambda work, device, of_processor: next(taken))
    found = time_beside_copy(lambda: None, torch.zeros(1), rounds=3)
    assert found == Timing(4e-6, 1e-6, 0.25)
    row = _row("encode", Input("normal", {"w": torch.zeros(1, 10, 100)}), found)
    rates = [row[key] for key in ("milliseconds", "gb_per_second", "memcpy_gb_per_second")]
    assert rates == pytest.approx([4e-3, 1, 4])


def test_on_one_thread_the_time_of_others_does_not_count() -> None:
    before = torch.get_num_threads()
    try:
        for threads, least, most in ((1, 0, 0.01), (2, 0.02, 1)):
            torch.set_num_threads(threads)
            found = time_beside_copy(lambda: time.sleep(0.02), torch.zeros(1), rounds=1)
            assert least <= found.seconds <= most
    finally:
        torch.set_num_threads(before)


def test_threads_that_wait_use_cpu_time() -> None:
    def work() -> None:
        end = time.process_time() + 0.002 * torch.get_num_threads()
        while time.process_time() < end:
            pass

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert cpu_beside_one_thread(work, torch.device("cpu"), 3) is None
        torch.set_num_threads(2)
        assert cpu_beside_one_thread(work, torch.device("cpu"), 3) == pytest.approx(2, rel=0.2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_messages_of_other_workers_are_decoded_too() -> None:
    gradients = Input("normal", {"w": torch.ones(1, 10, 100)})
    rows = [*measure(build_method("qsgd", min_size=0), gradients, rounds=1, workers=3)]
    assert [row["part"] for row in rows][2:] == ["aggregate", "aggregate, 3 workers"]


def test_a_message_is_one_of_the_two_rounds_of_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = SimpleNamespace(all_reduce=lambda number: None, get_world_size=lambda: 4)
    monkeypatch.setattr(steps, "dist", ring)
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter=count().__next__))
    assert message_seconds(LocalControl()) == pytest.approx(1 / 6)  # type: ignore[arg-type]


def test_a_turn_is_timed_by_the_step_without_its_first_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    class Seldom:
        """A contender that exchanges in every third step and is slow in a turn's first three."""

        model, period, taken = nn.Linear(1, 1), 3, 0

        def step(self) -> None:
            nonlocal now
            now += 10.0 if self.taken % 9 < 3 else 1.0
            self.taken += 1

        def settle(self) -> None: ...

        def facts(self, control: Any) -> dict[str, Any]:
            return {}

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now))
    (row,) = time_rows({BASELINE: Seldom()}, LocalControl(), rounds=2)
    assert row["all_step_seconds"] == [1.0] * 4 and row["of_no_exchange"] == 1
