"""The cost model agrees with a simulated ring, with the papers' formulas, and with hand counts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from nightly import each

from gcbench.core.comm.meter import Collective, wire_bits
from gcbench.runner.network import Link, Network

LATENCY, SPEED = 1e-4, 1e9
SLOW = Link(SPEED, LATENCY)
FAST = Link(20 * SPEED, LATENCY / 10)


def flat(workers: int) -> Network:
    return Network(workers, 1, FAST, SLOW)


def ring_all_reduce(workers: int, parts: list[list[float]]) -> tuple[list[list[float]], int]:
    """Return every worker's parts after both rounds of the ring, and how many each passed on."""
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


@each("workers", [1, 2, 3, 4, 7])
def test_a_ring_that_sums_moves_as_many_bits(workers: int) -> None:
    parts, passed = ring_all_reduce(
        workers, [[10.0**k + i for i in range(workers)] for k in range(workers)]
    )
    total = [sum(10.0**k + i for k in range(workers)) for i in range(workers)]
    assert parts == [total] * workers
    assert wire_bits("all_reduce", workers * 64, workers) == passed * 64


@each("workers", [2, 5, 16])
def test_one_level_costs_what_the_papers_formulas_say(workers: int) -> None:
    """An all-reduce takes 2 (W - 1) / W S / B + 2 (W - 1) latency.

    An all-gather takes (W - 1) S / B + (W - 1) latency.
    """
    size, others = 8e6, workers - 1
    assert wire_bits("all_reduce", size, workers) == pytest.approx(2 * others / workers * size)
    assert flat(workers).seconds("all_reduce", size) == pytest.approx(
        2 * others / workers * size / SPEED + 2 * others * LATENCY
    )
    assert wire_bits("all_gather", size, workers) == others * size
    gathered = flat(workers).seconds("all_gather", size)
    assert gathered == pytest.approx(others * size / SPEED + others * LATENCY)
    assert flat(workers).seconds("ragged_gather", size) == pytest.approx(gathered)
    assert wire_bits("all_to_all", size, workers) == size
    assert flat(workers).seconds("all_to_all", size) == pytest.approx(
        size / SPEED + others * LATENCY
    )


COLLECTIVES: list[Collective] = ["all_reduce", "all_gather", "ragged_gather", "all_to_all"]


@each("collective", COLLECTIVES)
def test_one_worker_moves_nothing_and_a_node_uses_its_own_links(collective: Collective) -> None:
    assert Network(1, 1, FAST, SLOW).seconds(collective, 1e6) == 0
    inside = Network(4, 4, FAST, SLOW).seconds(collective, 1e6)
    assert inside == pytest.approx(Network(4, 1, SLOW, FAST).seconds(collective, 1e6))
    assert inside < Network(4, 2, FAST, SLOW).seconds(collective, 1e6)


def test_two_levels_by_hand() -> None:
    """Two nodes of two workers have links of 20 Gbit/s inside and 1 Gbit/s between, no latency."""
    two = Network(4, 2, Link(20e9), Link(1e9))
    # The slow link sets the time of every round.
    assert two.seconds("all_reduce", 8e6) == pytest.approx(6 * 2e6 / 1e9)
    assert two.seconds("all_gather", 8e6) == pytest.approx(3 * 8e6 / 1e9)
    # Both workers of a node send to both of the other over one link.
    assert two.seconds("ragged_gather", 8e6) == pytest.approx(4 * 8e6 / 1e9)
    assert two.seconds("all_to_all", 9e6) == pytest.approx(4 * 3e6 / 1e9)


def test_the_busiest_link_sets_the_time_of_a_ragged_gather() -> None:
    sizes = [1e6, 0, 0, 5e6]
    network = Network(4, 1, FAST, Link(1e9))
    assert network.point_to_point_seconds(sizes) == pytest.approx(3 * 5e6 / 1e9)
    assert network.point_to_point_seconds([5e6, 5e6, 0, 5e6]) == pytest.approx(3 * 5e6 / 1e9)


def test_a_level_is_a_network_of_its_own() -> None:
    """If eight workers of a node exchange an eighth each, that takes as long as one with it all."""
    two = Network(32, 8, FAST, Link(1e9))
    alone = Network(4, 1, FAST, Link(1e9)).seconds("all_gather", 8e6)
    assert two.level("between").seconds("all_gather", 1e6) == pytest.approx(alone)
    assert two.level("inside").seconds("all_reduce", 8e6) == Network(8, 8, FAST, SLOW).seconds(
        "all_reduce", 8e6
    )
    assert two.level("all") == two


def test_it_needs_the_standard_library_only() -> None:
    code = (
        "import sys, gcbench.runner.network\n"
        "assert not {'torch', 'numpy', 'pydantic', 'yaml'} & {*sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
