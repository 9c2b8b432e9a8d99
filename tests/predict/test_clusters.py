"""The papers' predictions."""

from __future__ import annotations

import pytest

from gcbench.config import register
from gcbench.predict.clusters import study_rows, through_servers
from gcbench.predict.payload import Message


def test_servers_are_pushed_to_and_pulled_from() -> None:
    dense, shards = Message("all", "all_reduce", 1, 400.0), Message("all", "all_gather", 1, 10.0)
    assert through_servers([dense], 4) == [Message("all", "all_to_all", 2, 600.0)]
    assert through_servers([shards], 4) == [Message("all", "all_to_all", 1, 30.0)]


@pytest.mark.slow
def test_ecq_sgd_on_512_gpus() -> None:
    """The paper: 2.43 times as many images a second at 40 Gbit/s, and more on slower networks."""
    register()
    speeds = {row["row"]: row["images_per_second"] for row in study_rows("ecqsgd/figure6")}
    gains = [
        speeds[f"ECQ-SGD{at}"] / speeds[f"SGD{at}"] for at in ("", " at 10 Gbit/s", " at 1 Gbit/s")
    ]
    assert 0.75 * 2.43 < gains[0] < 1.25 * 2.43
    assert gains == sorted(gains)
