"""Checksums are charged, change no result, and name the sender of an altered bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checksum_cases import CASES, flipped_bits, with_and_without
from comm_cases import WORKERS
from gloo_pool import pool
from nightly import each
from sentence import run

from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.messages import disagreement
from gcbench.core.comm.nodes import Nodes
from gcbench.core.comm.transport import MirrorTransport


@each("layout", ["virtual", "gloo"])
def test_results_stay_and_every_message_costs_32_bits_more(layout: str) -> None:
    runs = [with_and_without(None)] if layout == "virtual" else pool(WORKERS).run(with_and_without)
    for (plain, plain_bits), (checked, bits) in runs:
        for name, expected in plain.items():
            assert all(torch.equal(a, b) for a, b in zip(expected, checked[name], strict=True)), (
                name
            )
            more = 32 * (WORKERS - 1) if name.startswith("transpose") else 32
            # The lengths, which go first, include that of the checksum and have their own checksum.
            more += 2 * 32 if "ragged" in name else 0
            assert [b - a for a, b in zip(plain_bits[name], bits[name], strict=True)] == [
                more
            ] * len(bits[name]), name


def test_a_flipped_bit_is_named() -> None:
    errors = pool(WORKERS).run(flipped_bits)
    for rank, error in enumerate(errors):
        for case in CASES:
            if case == "all_reduce":
                assert (
                    error[case] == "all_reduce (sum) gave worker 1 a different result than worker 0"
                )
            elif rank == 1:
                assert error[case] and error[case].endswith(
                    "what worker 2 sent arrived altered at worker 1"
                ), case
            else:
                assert error[case] is None


def test_nodes_have_checksums_too() -> None:
    comm = Comm(4, checksum=True)
    (first, _), between = comm.split(2)
    first.gather([torch.zeros(2, 5, dtype=torch.uint8)])
    assert comm.meter.sent_bits == [40 + 32, 40 + 32, 0, 0]
    between.gather([torch.zeros(2, 5, dtype=torch.uint8)])
    # A node's workers share 40 bits; each sends a checksum of its own part.
    assert comm.meter.sent_bits == [72 + 20 + 32, 72 + 20 + 32, 20 + 32, 20 + 32]


@each("processes", [1, 2, 4, 8])
def test_every_message_of_a_worker_in_a_node_costs_32_bits_more(processes: int) -> None:
    """There are three: a mean inside a node, a gather between nodes, and one inside a node."""
    plain, checked = (
        Comm(8, MirrorTransport(0, processes), checksum=checksum) for checksum in (False, True)
    )
    for comm in (plain, checked):
        nodes = Nodes.of(comm, 4)
        means = nodes.mean([torch.zeros(8 // processes, 5)])
        nodes.gather(means)
    more = [a - b for a, b in zip(checked.meter.sent_bits, plain.meter.sent_bits, strict=True)]
    assert more == [3 * 32] * (8 // processes)


@pytest.mark.parametrize(
    "overrides",
    [["compressor=qsgd"], ["compressor=qsgd", "code=elias_sparse"], ["compressor=powersgd"]],
)
def test_a_run_is_charged_for_its_checksums(tmp_path: Path, overrides: list[str]) -> None:
    overrides = [*overrides, "trainer.launcher=virtual", "trainer.max_steps=3"]
    plain = run(tmp_path / "plain", *overrides)
    checked = run(tmp_path / "checked", *overrides, "trainer.checksum=true")
    messages = sum(kind["messages"] for kind in plain["collectives"])
    assert checked["test"] == plain["test"]
    assert checked["bits_sent"]["per_worker"] - plain["bits_sent"]["per_worker"] == 32 * messages


@each(
    ("sums", "says"),
    [
        ("aaa", None),
        ("aab", "worker 2 a different result than worker 0"),
        ("baa", "worker 0 a different result than worker 1"),
        ("ab", "worker 1 and worker 0 different results, and no majority shows which is right"),
        (
            "aabb",
            "workers 2, 3 and worker 0 different results, and no majority shows which is right",
        ),
    ],
)
def test_a_reduction_names_a_worker_only_where_most_agree(sums: str, says: str | None) -> None:
    assert disagreement(sums) == says
