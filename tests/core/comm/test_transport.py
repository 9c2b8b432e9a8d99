"""torch's own collectives, which are used with NCCL, give the same results as those over gloo."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import comm_cases
import pytest
import torch
import torch.distributed as dist
from comm_cases import Outcome
from gloo_pool import pool
from nightly import each

from gcbench.core.comm.transport import GlooTransport, NcclTransport, transport_of

Outcomes = dict[str, list[dict[str, Outcome]]]


@each(("layout", "processes"), [("4x1", 4), ("2x2", 2)])
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


@pytest.mark.parametrize(
    ("backends", "device", "expected"),
    [
        ("cuda:nccl", "cuda", NcclTransport),
        ("cpu:gloo,cuda:nccl", "cuda", NcclTransport),
        ("cpu:gloo,cuda:nccl", "cpu", GlooTransport),
        ("cpu:gloo,cuda:gloo", "cuda", GlooTransport),
        ("cpu:gloo,cuda:gloo", "cpu", GlooTransport),
    ],
)
def test_nccl_carries_what_lies_on_a_gpu_of_a_group_that_has_it(
    monkeypatch: pytest.MonkeyPatch, backends: str, device: str, expected: type
) -> None:
    group: Any = SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    monkeypatch.setattr(dist, "get_backend_config", lambda of: backends if of is group else "")
    assert type(transport_of(group, torch.device(device))) is expected
