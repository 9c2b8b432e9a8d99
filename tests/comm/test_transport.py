"""The exchanges of torch itself, which NCCL is asked for, bring what those of gloo bring."""

from __future__ import annotations

import comm_cases
import pytest
import torch
from comm_cases import Outcome
from gloo_pool import pool

Outcomes = dict[str, list[dict[str, Outcome]]]


@pytest.mark.parametrize(("layout", "processes"), [("4x1", 4), ("2x2", 2)])
def test_torchs_own_exchanges_bring_the_same(
    outcomes: Outcomes, layout: str, processes: int
) -> None:
    torchs_own = pool(processes).run(comm_cases.over_torchs_own)
    for seen, expected in zip(torchs_own, outcomes[layout], strict=True):
        assert seen.keys() == expected.keys()
        for case, outcome in seen.items():
            assert all(map(torch.equal, outcome.results, expected[case].results)), case
            assert outcome[1:] == expected[case][1:], case


def test_so_do_those_of_nodes() -> None:
    torchs_own = pool(4).run(comm_cases.nodes_over_torchs_own, 8)
    over_gloo = pool(4).run(comm_cases.node_outcomes_over_gloo, 8)
    for seen, expected in zip(torchs_own, over_gloo, strict=True):
        for size, outcome in seen.items():
            tensors = [outcome["mean"], *outcome["gather"]]
            others = [expected[size]["mean"], *expected[size]["gather"]]
            assert all(map(torch.equal, tensors, others)), size
            assert outcome["totals_by_worker"] == expected[size]["totals_by_worker"], size
