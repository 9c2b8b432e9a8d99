"""Predictions for the networks and clusters of the papers."""

from __future__ import annotations

import pytest

from gcbench.core.comm.meter import Message
from gcbench.papers.studies.throughput_model import config_of, method_of, rows_of, through_servers
from gcbench.papers.tables.tables import read_table
from gcbench.runner.predict.devices import read_device, read_link
from gcbench.runner.predict.model import Cluster, predict


def test_servers_are_pushed_to_and_pulled_from() -> None:
    dense, shards = Message("all", "all_reduce", 1, 400.0), Message("all", "all_gather", 1, 10.0)
    assert through_servers([dense], 4) == [Message("all", "all_to_all", 2, 600.0)]
    assert through_servers([shards], 4) == [Message("all", "all_to_all", 1, 30.0)]


@pytest.mark.slow
def test_ecq_sgd_on_512_gpus() -> None:
    """In the paper: 2.43 times the images per second at 40 Gbit/s, and more on slower networks."""
    speeds = {row["row"]: row["images_per_second"] for row in rows_of("ecqsgd/figure6")}
    gains = [
        speeds[f"ECQ-SGD{at}"] / speeds[f"SGD{at}"] for at in ("", " at 10 Gbit/s", " at 1 Gbit/s")
    ]
    assert 0.75 * 2.43 < gains[0] < 1.25 * 2.43
    assert gains == sorted(gains)


@pytest.mark.slow
def test_powersgds_times_agree_by_construction() -> None:
    """The device and link are derived from SGD and Signum on 16 workers with NCCL (table 3)."""
    device, printed = "powersgd_cluster", {"SGD": 0.312, "Signum": 0.301}
    cluster = Cluster(read_link("network", "powersgd_nccl"), read_link("inside", "pcie3"), 2)
    rows = {row.label: row for row in read_table("powersgd/figure3").rows}
    for name, seconds in printed.items():
        row = rows[f"NCCL: {name}, 16 workers"]
        batch = config_of(row).trainer.batch_size
        compute = read_device(device).compute("resnet18", batch)
        step = predict(method_of(row, device), 16, cluster, compute)
        assert step.step_seconds == pytest.approx(seconds, rel=0.05)
