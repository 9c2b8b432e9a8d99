"""gcbench.compress where backward passes under DDP add up in `p.grad`, in two processes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from accumulation_cases import (
    accumulate_in_a_static_graph,
    add_to_an_update,
    add_up_micro_batches,
    copies_of_updates,
    sparse_gradient,
    use_branches,
)
from gloo_pool import pool
from method_cases import CHOICES

from gcbench.runner.config.keys import method_keys

FEW = ("none", "signum", "ef21", "powersgd")


@pytest.mark.parametrize(
    "names, seeds",
    [
        pytest.param(FEW, (1,), id="few"),
        pytest.param(CHOICES, (2, 3), id="all", marks=pytest.mark.slow),
    ],
)
def test_exchanges_of_one_step_add_up_their_updates(
    names: Sequence[str], seeds: tuple[int, ...]
) -> None:
    """A method sees new gradients only, whatever p.grad holds and the user does to it."""
    keys = method_keys()
    knobs = {name: {"min_size": 0} if "min_size" in keys[name] else {} for name in names}
    knobs |= {name: {"momentum": 0.9, "dense_steps": 2} for name in names if "adam" in name}
    for seed in seeds:
        for seen in pool(2).run(add_up_micro_batches, knobs, seed):
            for name, (got, right, bits, right_bits) in seen.items():
                same = all(torch.equal(a, b) for a, b in zip(got, right, strict=True))
                assert same, (name, seed)
                assert bits == right_bits > 0, (name, seed)


def test_layers_that_a_backward_pass_does_not_use_keep_their_update() -> None:
    for as_view in (False, True):
        for ours, plain in pool(2).run(use_branches, as_view):
            for a, b in zip(ours, plain, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_nothing_is_copied_after_zero_grad() -> None:
    """Nor is a gradient watched as it arrives, from the second exchange with DDP's last buckets."""
    for copies in pool(2).run(copies_of_updates):
        assert copies == [(0, 4), (0, 4), (0, 0), (0, 0), (0, 4), (4, 4)]


def test_gradients_that_were_not_exchanged_do_not_mix_with_an_update_unnoticed() -> None:
    for case in ("bare", "quiet", "unseen"):
        for sentence in pool(2).run(add_to_an_update, case):
            assert sentence.startswith("p.grad holds an update and gradients that DDP did not ")
            assert "; type optimizer.zero_grad() after optimizer.step(), and no_sync()" in sentence
    for case in ("bare, zeroed", "bare, none", "quiet, zeroed", "quiet, none"):
        for pairs in pool(2).run(add_to_an_update, case):
            assert all(torch.equal(got, right) for got, right in pairs), case
    for sentence in pool(2).run(add_to_an_update, "own"):
        assert sentence.startswith("p.grad differed between workers when gradients were added ")


def test_a_static_graph_accumulates_after_the_first_backward_pass() -> None:
    for sentence, static, plain in pool(2).run(accumulate_in_a_static_graph):
        assert sentence.startswith("static_graph=True: PyTorch learns the graph in the first ")
        assert "; type static_graph=False, or leave out no_sync() in the first step" in sentence
        assert all(torch.equal(a, b) for a, b in zip(static, plain, strict=True))


def test_a_sparse_gradient_is_named() -> None:
    for sentence in pool(2).run(sparse_gradient):
        assert sentence.startswith("table: a compressor takes no sparse gradients; type sparse=")
