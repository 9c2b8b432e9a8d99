"""The cost model agrees with walks through the algorithms, and with the papers' formulas."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from gcbench.comm import network
from gcbench.comm.network import Collective, Link, Network, wire_bits

LATENCY, SPEED = 1e-4, 1e9
SLOW = Link(SPEED, LATENCY)
FAST = Link(20 * SPEED, LATENCY / 10)


def flat(workers: int) -> Network:
    return Network(workers, 1, FAST, SLOW)


def ring_all_reduce(workers: int, parts: list[list[float]]) -> tuple[list[list[float]], int]:
    """Return every worker's parts after two rounds of the ring, and the parts each passed on."""
    passed = 0
    for summing in (True, False):
        for turn in range(workers - 1):
            passed += 1
            sent = {k: (k - turn + (not summing)) % workers for k in range(workers)}
            values = {k: parts[k][i] for k, i in sent.items()}
            for k, i in sent.items():
                right = (k + 1) % workers
                parts[right][i] = parts[right][i] + values[k] if summing else values[k]
    return parts, passed


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_a_ring_that_sums_moves_as_many_bits(workers: int) -> None:
    parts, passed = ring_all_reduce(
        workers, [[10.0**k + i for i in range(workers)] for k in range(workers)]
    )
    total = [sum(10.0**k + i for k in range(workers)) for i in range(workers)]
    assert parts == [total] * workers
    assert wire_bits("all_reduce", workers * 64, workers) == passed * 64


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_a_tree_moves_as_many_bits(workers: int) -> None:
    """All who know tell one who does not in every round."""
    knowing, messages, rounds = 1, 0, 0
    while knowing < workers:
        informed = min(knowing, workers - knowing)
        knowing, messages, rounds = knowing + informed, messages + informed, rounds + 1
    assert wire_bits("broadcast", 100, workers) * workers == 100 * messages
    assert wire_bits("tree_all_reduce", 100, workers) == 2 * wire_bits("broadcast", 100, workers)
    assert flat(workers).cost("broadcast", 100).seconds == pytest.approx(
        rounds * (LATENCY + 100 / SPEED)
    )
    assert flat(workers).cost("tree_all_reduce", 100).seconds == pytest.approx(
        2 * rounds * (LATENCY + 100 / SPEED)
    )


@pytest.mark.parametrize("workers", [2, 5, 16])
def test_one_level_costs_what_the_papers_formulas_say(workers: int) -> None:
    """They are 2 (W - 1) / W S / B + 2 (W - 1) latency, and (W - 1) S / B + (W - 1) latency."""
    size, others = 8e6, workers - 1
    reduced = flat(workers).cost("all_reduce", size)
    assert reduced.wire_bits == pytest.approx(2 * others / workers * size)
    assert reduced.seconds == pytest.approx(
        2 * others / workers * size / SPEED + 2 * others * LATENCY
    )
    gathered = flat(workers).cost("all_gather", size)
    assert gathered.wire_bits == others * size
    assert gathered.seconds == pytest.approx(others * size / SPEED + others * LATENCY)
    assert flat(workers).cost("ragged_gather", size) == pytest.approx(gathered)
    exchanged = flat(workers).cost("all_to_all", size)
    assert exchanged.wire_bits == size
    assert exchanged.seconds == pytest.approx(size / SPEED + others * LATENCY)


COLLECTIVES: list[Collective] = [
    "all_reduce",
    "tree_all_reduce",
    "all_gather",
    "ragged_gather",
    "all_to_all",
    "broadcast",
]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_worker_moves_nothing_and_a_node_uses_its_own_links(collective: Collective) -> None:
    assert Network(1, 1, FAST, SLOW).cost(collective, 1e6) == (0, 0)
    inside = Network(4, 4, FAST, SLOW).cost(collective, 1e6)
    assert inside == pytest.approx(Network(4, 1, SLOW, FAST).cost(collective, 1e6))
    assert inside.seconds < Network(4, 2, FAST, SLOW).cost(collective, 1e6).seconds


def test_two_levels_by_hand() -> None:
    """Two nodes of two have links without latency, 1 and 20 Gbit/s; every worker has 8 Mbit."""
    two = Network(4, 2, Link(20e9), Link(1e9))
    # The slow link sets the time of every round.
    assert two.cost("all_reduce", 8e6).seconds == pytest.approx(6 * 2e6 / 1e9)
    assert two.cost("all_gather", 8e6).seconds == pytest.approx(3 * 8e6 / 1e9)
    # Two workers send to two over one link.
    assert two.cost("ragged_gather", 8e6).seconds == pytest.approx(4 * 8e6 / 1e9)
    assert two.cost("all_to_all", 9e6).seconds == pytest.approx(4 * 3e6 / 1e9)
    assert two.cost("broadcast", 8e6).seconds == pytest.approx(8e6 / 1e9 + 8e6 / 20e9)


def test_the_busiest_link_sets_the_time_of_a_ragged_gather() -> None:
    sizes = [1e6, 0, 0, 5e6]
    cost = Network(4, 1, FAST, Link(1e9)).ragged_cost(sizes)
    assert cost.wire_bits * 4 == 3 * sum(sizes)
    assert cost.seconds == pytest.approx(3 * 5e6 / 1e9)
    assert Network(4, 1, FAST, Link(1e9)).ragged_cost([5e6, 5e6, 0, 5e6]).seconds == pytest.approx(
        3 * 5e6 / 1e9
    )


def test_a_level_is_a_network_of_its_own() -> None:
    """Eight workers of a node exchange an eighth each, as fast as one of them exchanges all."""
    two = Network(32, 8, FAST, Link(1e9))
    alone = Network(4, 1, FAST, Link(1e9)).cost("all_gather", 8e6)
    assert two.level("between").cost("all_gather", 1e6).seconds == pytest.approx(alone.seconds)
    assert two.level("inside").cost("all_reduce", 8e6) == Network(8, 8, FAST, SLOW).cost(
        "all_reduce", 8e6
    )
    assert two.level("all") == two


def test_it_needs_the_standard_library_only() -> None:
    tree = ast.parse(Path(network.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= set(sys.stdlib_module_names) | {"collections.abc"}
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
