"""Emulated collectives last as long as the cost model says, with the usual results."""

from __future__ import annotations

import comm_cases
import pytest
import torch
from gloo_pool import pool
from nightly import each

from gcbench.runner.network import Link, Network

LINK = Link(2e7, 1e-3)
NETWORK = Network(4, 1, LINK, LINK)
Span = tuple[float, float]


@pytest.fixture(scope="module")
def spans() -> list[dict[str, Span]]:
    """Return when each process began and ended its exchanges."""
    return pool(4).run(comm_cases.emulated_spans, LINK)


@each(
    ("case", "expected"),
    [
        ("all_reduce", NETWORK.seconds("all_reduce", 8e5)),
        ("all_gather", NETWORK.seconds("all_gather", 8e5)),
        ("all_to_all", NETWORK.seconds("all_to_all", 6e5)),
        (
            "ragged",
            NETWORK.seconds("all_gather", 32) + NETWORK.point_to_point_seconds([0, 2e5, 4e5, 6e5]),
        ),
        ("inside", Network(2, 1, LINK, LINK).seconds("all_reduce", 8e5)),
    ],
)
def test_a_collective_lasts_as_long_as_the_model_says(
    spans: list[dict[str, Span]], case: str, expected: float
) -> None:
    """Its time starts when the last process has come; a busy machine may prolong it."""
    begins, ends = zip(
        *(process[case] for process in spans[2 if case == "inside" else 0 :]), strict=True
    )
    assert expected <= min(ends) - max(begins) < expected + 0.5


def test_results_and_counts_are_those_without() -> None:
    with_link = pool(4).run(comm_cases.over_emulated, Link(1e12))
    for seen, expected in zip(with_link, pool(4).run(comm_cases.over_gloo), strict=True):
        for case, outcome in seen.items():
            assert all(map(torch.equal, outcome.results, expected[case].results)), case
            assert outcome[1:] == expected[case][1:], case
