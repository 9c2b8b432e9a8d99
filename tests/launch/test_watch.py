"""Which process is late, according to the answers of all."""

from __future__ import annotations

import pytest

from gcbench.launch.watch import Place, _who_is_late

FORWARD = Place(False, "in forward of step 7")
EXCHANGE = Place(True, "in exchange of step 7")
AGREEMENT = Place(True, "after step 6, in an agreement")


@pytest.mark.parametrize(
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
