"""Control: messages between processes other than gradients."""

from __future__ import annotations

from typing import Any

import comm_cases
import pytest
import torch
from gloo_pool import pool

from gcbench.runner.control import LocalControl

Agreements = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[4, 2])
def agreements(request: pytest.FixtureRequest) -> Agreements:
    return pool(request.param).run(comm_cases.agreements)


def test_gather_lists_every_process_by_rank(agreements: Agreements) -> None:
    expected = [{"rank": rank, "text": "x" * rank} for rank in range(len(agreements))]
    assert all(seen["gather"] == expected for seen in agreements)


def test_sum_adds_up_and_keeps_the_summands(agreements: Agreements) -> None:
    ranks = range(len(agreements))
    for rank, seen in enumerate(agreements):
        assert seen["sum"].tolist() == [sum(r + 1 for r in ranks), sum(10 * r for r in ranks)]
        assert seen["sum"].dtype == torch.float64
        assert seen["summands"].tolist() == [rank + 1, 10 * rank]


def test_broadcast_gives_everyone_what_the_first_has(agreements: Agreements) -> None:
    for seen in agreements:
        weights, transposed, counts = seen["broadcast"]
        assert torch.equal(weights, torch.full((2, 3), 7.0))
        assert torch.equal(transposed, torch.arange(6.0).view(2, 3).T)
        assert counts.tolist() == [5]


def test_everyone_agrees_on_the_highest_urgency(agreements: Agreements) -> None:
    expected = [0, 2, 1, 0]
    assert all(seen["agreed"] == expected for seen in agreements)


def test_control_is_not_metered(agreements: Agreements) -> None:
    """The meter counts only the four means of four floats that are exchanged in between."""
    assert all(seen["metered"] == 4 * 4 * 32 for seen in agreements)


def test_one_process_agrees_with_itself() -> None:
    control, x = LocalControl(), torch.arange(3.0)
    control.propose(2)
    control.broadcast([x])
    control.barrier()
    assert control.agree() == 2
    assert control.gather("me") == ["me"]
    assert torch.equal(control.sum(x), torch.arange(3.0))
