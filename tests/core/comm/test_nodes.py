"""Two levels of workers: the same means, messages and counts in any layout of processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from comm_cases import (
    node_outcomes_in_one_process,
    node_outcomes_over_gloo,
    timeouts_of_nodes,
    values,
)
from gloo_pool import pool
from nightly import each

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.meter import Kind, Total
from gcbench.core.comm.nodes import node_size

LAYOUTS = ("1x8", "4x2", "2x4", "4x1")  # processes x rows


def workers_of(layout: str) -> int:
    processes, rows = layout.split("x")
    return int(processes) * int(rows)


Seen = dict[str, list[dict[int, dict[str, Any]]]]


@pytest.fixture(scope="module")
def seen() -> Seen:
    """Return what each process of each layout saw, by size of a node."""
    pool(4), pool(2)
    return {
        "1x8": [node_outcomes_in_one_process(8)],
        "4x2": pool(4).run(node_outcomes_over_gloo, 8),
        "2x4": pool(2).run(node_outcomes_over_gloo, 8),
        "4x1": pool(4).run(node_outcomes_over_gloo, 4),
    }


each_layout_and_size = pytest.mark.parametrize(
    ("layout", "size"),
    [(layout, n) for layout in LAYOUTS for n in (1, 2, 4) if n < workers_of(layout)],
)


@each_layout_and_size
def test_means_are_those_of_each_nodes_workers(seen: Seen, layout: str, size: int) -> None:
    expected = values(range(workers_of(layout)), (5,), torch.float32).view(-1, size, 5).mean(1)
    for process in seen[layout]:
        nodes, means = process[size]["local"], process[size]["mean"]
        torch.testing.assert_close(means, expected[nodes.start : nodes.stop], rtol=1e-6, atol=1e-7)


@each_layout_and_size
def test_messages_of_all_nodes_arrive_everywhere(seen: Seen, layout: str, size: int) -> None:
    """11 + 12 = 23 bytes do not divide evenly into the slices of 2 or 4 workers."""
    nodes = range(workers_of(layout) // size)
    for process in seen[layout]:
        codes, scales = process[size]["gather"]
        assert torch.equal(codes, values(nodes, (11,), torch.uint8))
        assert torch.equal(scales, values(nodes, (3,), torch.float32))


@each_layout_and_size
def test_levels_are_counted_apart_and_alike_in_all_layouts(
    seen: Seen, layout: str, size: int
) -> None:
    """Five floats are averaged inside a node, and 23 bytes are gathered between nodes.

    Every worker sends its part of its node's 23 bytes to the other nodes, and passes on theirs
    inside its node. A node of one worker counts nothing inside.
    """
    nodes, part = workers_of(layout) // size, 8 * -(-23 // size)
    expected = {
        Kind("inside", "all_reduce", size): Total(1, 160, 160),
        Kind("between", "all_gather", nodes): Total(1, part, (nodes - 1) * part),
        Kind("inside", "all_gather", size): Total(
            1, (nodes - 1) * part, (size - 1) * (nodes - 1) * part
        ),
    }
    expected = {kind: total for kind, total in expected.items() if kind.workers > 1}
    totals_by_worker = [
        totals for process in seen[layout] for totals in process[size]["totals_by_worker"]
    ]
    assert totals_by_worker == [expected] * workers_of(layout)


def test_what_a_process_keeps_to_itself_is_no_exchange(seen: Seen) -> None:
    exchanges = {
        layout: [outcome["exchanges"] for outcome in seen[layout][0].values()] for layout in LAYOUTS
    }
    assert exchanges == {"1x8": [0, 0, 0], "2x4": [1, 1, 1], "4x2": [1, 1, 3], "4x1": [1, 3]}


def test_nodes_that_leave_together_share_their_link_evenly() -> None:
    meter = Comm(3).meter
    meter.part("between", [range(3)]).count("all_gather", 2, [100], [50])
    assert meter.sent_bits == [33, 33, 34] and sum(meter.received_bits) == 50


@each(
    ("asked", "workers", "rows", "host", "says"),
    [
        (
            None,
            4,
            4,
            None,
            "exchange=hierarchical: it is not known which workers share a host, as for virtual "
            "workers; type workers_per_node=2",
        ),
        (3, 4, 1, 4, "workers_per_node=3 cannot share 4 workers evenly; type workers_per_node=2"),
        (8, 4, 1, 4, "workers_per_node=8 cannot share 4 workers evenly; type workers_per_node=2"),
        (
            3,
            6,
            2,
            6,
            "workers_per_node=3: some process would hold part of two nodes, as each has 2 "
            "workers; type ",
        ),
        (
            None,
            4,
            1,
            4,
            "workers_per_node=null: all workers would be one node, and nothing would be "
            "compressed; type exchange=",
        ),
        (4, 4, 4, None, "type exchange=gather, or smaller nodes, as in workers_per_node=2"),
    ],
)
def test_nodes_that_cannot_be_are_refused(
    asked: int | None, workers: int, rows: int, host: int | None, says: str
) -> None:
    with pytest.raises(ValueError) as error:
        node_size(asked, workers, rows, host)
    assert says in str(error.value)


def test_a_node_is_a_host_unless_its_size_is_given() -> None:
    assert node_size(None, 8, 1, 4) == 4
    assert node_size(2, 8, 1, 4) == 2


def test_a_node_waits_no_longer_than_the_run_does() -> None:
    assert pool(4).run(timeouts_of_nodes, 77.0) == [{77.0}] * 4
