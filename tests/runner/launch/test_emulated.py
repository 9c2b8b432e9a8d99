"""A run over an emulated network has the times of the cost model, and its result says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from needed import patience
from sentence import run

from gcbench.runner.predict.recorded import compare

OVERRIDES = (
    *"trainer.max_steps=6 trainer.eval_every=null compressor=none trainer.error_every=null".split(),
)
EMULATED = ("network=emulated", "network.bandwidth=1mbit", "network.latency=100ms")
N = 64 * 16 + 16 + 16 * 10 + 10


@pytest.mark.usefixtures("copied_workers")
def test_times_are_the_models_and_flagged(tmp_path: Path) -> None:
    result = run(tmp_path / "local", "trainer.launcher=local", *OVERRIDES, *EMULATED)
    facts = result["network"]
    assert facts == {"emulated": True, "bandwidth": "1mbit", "latency": "100ms", "link": None}
    expected = 32 * N / 1e6 + 2 * 0.100
    assert expected <= result["seconds"]["exchange"]["mean"] < patience(2 * expected)


@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize("fragments", [1, 2])
def test_local_steps_take_the_time_that_is_predicted(tmp_path: Path, fragments: int) -> None:
    """The last three of six steps are timed, and exchange every parameter once."""
    local = ("estimator=local_steps", "estimator.every=3", f"estimator.fragments={fragments}")
    result = run(tmp_path, "trainer.launcher=local", *OVERRIDES, *EMULATED, *local)
    expected = (32 * N / 1e6 + 2 * 0.100 * fragments) / 3
    comparison = compare(str(tmp_path))
    assert comparison.exchange_seconds == pytest.approx(expected)
    assert comparison.measured_exchange_seconds == result["seconds"]["exchange"]["mean"]
    assert expected <= comparison.measured_exchange_seconds < patience(1.5 * expected)
