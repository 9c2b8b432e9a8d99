"""Times of whole training steps, by several methods in turn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gloo_pool import pool
from needed import patience
from step_cases import latency, step_rows, uneven_rows

OVERRIDES = ["model=mlp", "model.widths=[64]", "dataset=digits", "trainer.batch_size=8"]
METHODS = {
    "dense": ["compressor=none"],
    "QSGD": ["compressor=qsgd", "bits=4", "min_size=0"],
    "PowerSGD, overlap": ["compressor=powersgd", "trainer.overlap=true"],
    "QSGD, mirrored": ["compressor=qsgd", "bits=4", "min_size=0"],
    "dense, every 4 steps": ["compressor=none", "estimator=local_steps", "estimator.every=4"],
    "dense, late": ["compressor=none", "trainer.double_buffering=true"],
}


@pytest.mark.slow
def test_methods_take_turns_on_one_set_of_weights() -> None:
    (found, shared), (others, _) = pool(2).run(step_rows, OVERRIDES, METHODS, ["QSGD, mirrored"])
    assert shared
    facts = [row["method"] for row in found]
    assert facts == ["no exchange", "torch DDP", "torch DDP, powerSGD_hook rank 2", *METHODS]
    by_name = {row["method"]: row for row in found}
    assert by_name["no exchange"]["of_no_exchange"] == 1
    assert all(row["step_seconds"] > 0 for row in found)
    values = 64 * 64 + 64 + 64 * 10 + 10
    assert by_name["no exchange"]["sent_bits"] == 32 * values, "no codes are made either"
    assert by_name["dense"]["collectives"] == [["all_reduce", 1, 32 * values]]
    assert by_name["dense"]["sent_bits"] == by_name["dense, late"]["sent_bits"] == 32 * values
    assert by_name["QSGD"]["sent_bits"] < 32 * values / 4
    assert all(by_name[name]["exchange_seconds"] > 0 for name in METHODS)
    mirrored = by_name["QSGD, mirrored"]
    assert mirrored["coding_seconds"] > 0 and mirrored["sent_bits"] == by_name["QSGD"]["sent_bits"]
    assert by_name["dense, every 4 steps"]["sent_bits"] == 32 * values / 4
    assert all(len(row["all_step_seconds"]) == 2 for row in found)
    times = [[row["step_seconds"] for row in rows] for rows in (found, others)]
    assert times[0] == pytest.approx(times[1])  # every process has those of the slowest


def test_a_step_lasts_as_long_as_in_the_slowest_process() -> None:
    (_, found), (_, other) = pool(2).run(uneven_rows, [0.0, 0.05])
    assert found == other
    assert 0.05 < found["step_seconds"] < patience(0.5) and found["of_no_exchange"] > 1


def test_a_message_takes_as_long_for_all() -> None:
    """A message takes a millisecond or less on an idle machine.

    The upper bound allows for a busy one.
    """
    one, other = pool(2).run(latency)
    assert 1e-6 < one == other < patience(0.05)


def test_virtual_workers_are_timed_beside_their_passes() -> None:
    script = Path(__file__).parents[3] / "scripts" / "turns"
    typed = [*OVERRIDES, "trainer.workers=3", "--rounds", "1", "--methods", "dense fp32"]
    printed = subprocess.run(
        [sys.executable, script, "virtual", *typed], capture_output=True, text=True, check=True
    ).stdout
    passes, at_once, dense = (line.split("|")[1:4] for line in printed.splitlines()[2:5])
    assert passes[0].strip() == "passes" and float(passes[2]) == 1
    assert at_once[0].strip() == "one pass" and float(at_once[2]) > 0
    assert dense[0].strip() == "dense fp32" and float(dense[2]) > 0
