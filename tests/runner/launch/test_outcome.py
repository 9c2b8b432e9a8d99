"""The bit counts of a result: what workers send, what they receive, and what the wire carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sentence import run

N = 64 * 16 + 16 + 16 * 10 + 10
COUNTS = ("bits_sent", "bits_wire", "bits_between_nodes", "collectives", "analytic_ratio")
FOUR = ("trainer.workers=4", "trainer.max_steps=3", "trainer.eval_every=null")


def virtual(folder: Path, *overrides: str) -> dict[str, Any]:
    return run(folder, *FOUR, "trainer.launcher=virtual", *overrides)


def test_a_dense_ring_moves_one_and_a_half_gradients(tmp_path: Path) -> None:
    result = virtual(tmp_path, "compressor=none")
    assert result["bits_sent"]["per_step"] == 32 * N
    assert result["bits_wire"]["per_step"] == result["bits_wire"]["dense_per_step"] == 1.5 * 32 * N
    assert result["bits_wire"]["ratio"] == 1 and result["analytic_ratio"] is None
    (only,) = result["collectives"]
    facts = (only["level"], only["collective"], only["workers"], only["messages"])
    assert facts == ("all", "all_reduce", 4, 3)
    assert result["bits_between_nodes"] is None


def test_what_the_wire_carries_is_the_sum_of_the_collectives(tmp_path: Path) -> None:
    result = virtual(tmp_path, "min_size=100")
    assert {c["collective"] for c in result["collectives"]} == {"all_reduce", "all_gather"}
    for count, column in (("bits_sent", "sent_bits"), ("bits_wire", "wire_bits")):
        assert result[count]["per_worker"] == sum(c[column] for c in result["collectives"])
    assert result["analytic_ratio"] == 8 and result["bits_sent"]["ratio"] < 8


@pytest.mark.usefixtures("copied_workers")
def test_virtual_workers_count_as_real_ones(tmp_path: Path) -> None:
    overrides = ["min_size=100", "exchange=hierarchical", "workers_per_node=2"]
    expected = virtual(tmp_path / "virtual", *overrides)
    real = run(
        tmp_path / "real", *FOUR, "trainer.launcher=local", "trainer.processes=4", *overrides
    )
    assert {k: real[k] for k in COUNTS} == {k: expected[k] for k in COUNTS}


def test_what_a_node_sends_to_others_is_told_apart(tmp_path: Path) -> None:
    result = virtual(tmp_path, "min_size=0", "exchange=hierarchical", "workers_per_node=2")
    gathered = virtual(tmp_path / "flat", "min_size=0")
    # A worker of a gather receives three codes, one of a ring 3/2 gradients.
    sent, received = gathered["bits_sent"], gathered["bits_wire"]
    assert received["per_step"] == 3 * sent["per_step"]
    assert received["ratio"] == pytest.approx(sent["ratio"] / 2)
    # Codes are sent once per node, not once per worker.
    assert result["bits_between_nodes"]["per_step"] == gathered["bits_sent"]["per_step"]
    assert result["bits_between_nodes"]["ratio"] == pytest.approx(gathered["bits_sent"]["ratio"])
    assert result["bits_sent"]["per_step"] > 32 * N


def test_a_worker_alone_in_its_node_sends_what_a_gather_does(tmp_path: Path) -> None:
    alone = virtual(tmp_path, "min_size=0", "exchange=hierarchical", "workers_per_node=1")
    gathered = virtual(tmp_path / "flat", "min_size=0")
    assert alone["bits_sent"] == gathered["bits_sent"]
    assert [c["level"] for c in alone["collectives"]] == ["between"]


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    overrides = (
        "min_size=0 exchange=hierarchical workers_per_node=2 trainer.checkpoint_steps=2".split()
    )
    whole = virtual(tmp_path, *overrides)
    (tmp_path / "result.json").unlink()
    resumed = virtual(tmp_path, *overrides)
    assert {k: resumed[k] for k in COUNTS} == {k: whole[k] for k in COUNTS}


def test_collectives_are_means_over_workers_whose_codes_differ_in_length(tmp_path: Path) -> None:
    result = virtual(tmp_path, "min_size=0", "code=elias_dense")
    for count in ("sent", "wire"):
        summed = sum(c[f"{count}_bits"] for c in result["collectives"])
        assert result[f"bits_{count}"]["per_worker"] == summed
    assert result["bits_sent"]["per_worker"] < result["bits_sent"]["per_worker_max"]
