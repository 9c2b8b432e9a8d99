"""gcbench.compress(overlap=True): buckets are exchanged as DDP completes them."""

from __future__ import annotations

import pytest
import torch
from accumulation_cases import add_up_micro_batches
from gloo_pool import pool
from hook_cases import train_with_both
from library_cases import join, measure_error, skip_infinite, skip_scaled, train_as_people_do
from nightly import each
from overlap_cases import (
    exchanged_under_the_backward_pass,
    restart_by_means,
    train_by_means,
    train_with_nodes,
)
from unused_cases import KEEPS_ALL, WAYS, leave_out

from gcbench.core.library.overlap import has_free_cores


def test_a_bucket_is_exchanged_while_others_are_still_computed() -> None:
    for overlap in (True, False):
        assert pool(2).run(exchanged_under_the_backward_pass, "qsgd", overlap) == [overlap] * 2


def test_plain_means_overlap_as_those_of_ddp_do_and_are_the_same() -> None:
    for method in ("none", "fp16"):
        assert pool(2).run(exchanged_under_the_backward_pass, method, False) == [True] * 2
    for workers in (2, 3):
        for trained in pool(workers).run(train_by_means):
            for method, (ours, torchs) in trained.items():
                assert all(map(torch.allclose, ours, torchs)), method
                assert method == "none" or all(map(torch.equal, ours, torchs)), method
    for whole, restarted in pool(2).run(restart_by_means):
        assert all(map(torch.equal, whole, restarted))


@pytest.mark.capability
def test_whatever_ddp_does_is_right_with_overlap() -> None:
    choices = {name: {"min_size": 0, "overlap": True} for name in ("top_k", "powersgd", "ef21")}
    del choices["ef21"]["min_size"]
    for seen in pool(2).run(add_up_micro_batches, choices, 1):
        for name, (got, right, bits, right_bits) in seen.items():
            assert all(map(torch.equal, got, right)) and bits == right_bits > 0, name
    restarted = choices | {"none": {}, "fp16": {}}
    for seen in pool(2).run(train_with_both, restarted):  # which then sends the same messages
        for name, (expected, got, handle, resumed, *messages) in seen.items():
            assert all(map(torch.equal, expected, got)) and handle == resumed, name
            assert messages[0] == messages[1], name
    knobs = {"rank": 1, "overlap": True}
    assert pool(2).run(join, "powersgd", knobs) == [{"gradient": 5}] * 2
    for overflowed, after, state in pool(2).run(skip_infinite, "powersgd", knobs):
        assert not any(g.isfinite().any() for g in overflowed)
        assert state and all(x.isfinite().all() for x in [*after, *state])
    for scales, moved, state_moved in pool(2).run(skip_scaled, True):
        assert scales == [8.0, 8.0, 4.0, 4.0]
        assert moved == [True, False, True] and state_moved == [True, False, True]
    for measured, expected in pool(2).run(measure_error, "qsgd", {"min_size": 0, "overlap": True}):
        assert measured == pytest.approx(expected, rel=1e-5) and measured > 0.01
    a, b = pool(2).run(train_as_people_do, "powersgd", knobs)
    assert all(map(torch.equal, a["parameters"], b["parameters"]))
    assert all(map(torch.equal, a["parameters"], a["resumed"]))


def test_what_ddp_drops_is_kept_with_overlap() -> None:
    choices = {name: knobs | {"overlap": True} for name, knobs in KEEPS_ALL.items()}
    for ways in WAYS:
        for seen in pool(2).run(leave_out, choices, ways):
            assert not any(worker.wrong for worker in seen.values())


def test_nodes_have_their_own_groups_beside_the_backward_pass() -> None:
    for plain, overlapped in pool(2).run(train_with_nodes):
        assert all(map(torch.equal, plain, overlapped))


HOST = [*range(4)]


@each(
    ("processes", "free"),
    [
        ([("a", HOST, 1), ("a", HOST, 1)], True),
        ([("a", HOST, 2), ("a", HOST, 1)], False),
        ([("a", [0, 1], 1), ("a", [2, 3], 1)], True),  # each has its own cores
        ([("a", [0, 1], 1), ("b", [0, 1], 1)], True),
        ([("a", HOST, 1), ("b", [0], 1)], False),
    ],
)
def test_auto_overlaps_where_each_process_has_a_free_core(
    processes: list[tuple[str, list[int], int]], free: bool
) -> None:
    assert has_free_cores(processes) == free
