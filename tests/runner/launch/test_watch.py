"""Which process is late, according to the answers of all."""

from __future__ import annotations

from types import SimpleNamespace as Facts
from typing import Any

import pytest
from nightly import each

from gcbench.runner.launch import worker
from gcbench.runner.launch.failure import Place, _who_is_late

FORWARD = Place(False, "in forward of step 7")
EXCHANGE = Place(True, "in exchange of step 7")
AGREEMENT = Place(True, "after step 6, in an agreement")


@each(
    ("answers", "says"),
    [
        ([EXCHANGE, FORWARD], " for worker process 1, which is in forward of step 7"),
        ([EXCHANGE, FORWARD, AGREEMENT], " for worker process 1, which is in forward of step 7"),
        ([AGREEMENT, None, EXCHANGE], " for worker process 1, which does not answer"),
        ([EXCHANGE, AGREEMENT], ", where all processes wait: the network may be down"),
    ],
)
def test_who_waits_for_others_is_not_late(answers: list[Place | None], says: str) -> None:
    assert _who_is_late(answers) == says


@pytest.mark.parametrize(
    ("steps", "says"),
    [(0, "before the first step, in an agreement"), (7, "after step 6, in an agreement")],
)
def test_a_place_outside_of_steps_is_named(
    steps: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "watch", lambda rank, processes, where, seconds: where())
    run: Any = Facts(
        comm=Facts(processes=2),
        control=Facts(waits=True),
        clock=Facts(phase="end"),
        process=0,
        settings=Facts(timeout_seconds=5),
    )
    progress: Any = Facts(step=steps)
    assert worker._watch_run(run, progress) == Place(True, says)
