"""gcbench.compress on modules that fully_shard has sharded, in four processes joined by gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fsdp_cases import (
    add_up,
    divide_by_own_factor,
    estimates_behind_infinity,
    refusal,
    refused_states,
    remove,
    run_choices,
    skip_infinite,
    train_as_people_do,
    train_beside_plain,
    update_and_that_of_exchange,
    warnings_of_compress,
    warnings_of_groups,
)
from gloo_pool import pool
from method_cases import CHOICES
from nightly import each, slow_but
from torch import Tensor

either_way = pytest.mark.parametrize("between", [False, True], ids=["by shards", "between nodes"])

BY_SHARDS = {
    "bf16", "bingrad_b", "bingrad_pb", "ecqsgd", "eden", "ef21", "fp16", "fp8", "linear", "loco",
    "mxfp4", "mxfp6", "mxfp8", "natural", "none", "nvfp4", "onebit", "orq", "qsgd", "qsgd_levels",
    "scaled_sign", "sign_norm", "sparseloco", "terngrad", "top_k",
}  # fmt: skip
FEW = {"none", "qsgd", "maxnorm"}
BETWEEN_NODES = {*CHOICES} - {"onebit_adam"}  # which needs knobs


def close(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(a, b, strict=True))


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_none_trains_as_plain_fsdp_to_the_bit_in_two_processes() -> None:
    for ours, plain in pool(2).run(train_beside_plain, False, 5):
        assert equal(ours, plain)


@either_way
def test_none_trains_as_plain_fsdp_or_hsdp(between: bool) -> None:
    for ours, plain in pool(4).run(train_beside_plain, between, 5):
        assert close(ours, plain)


def test_buckets_run_through_a_group_of_parameters_in_any_case() -> None:
    knobs = {"min_size": 0, "bucket_size": 64}
    typed = pool(4).run(run_choices, False, {"qsgd": knobs | {"bucket_scope": "gradient"}})
    plain = pool(4).run(run_choices, False, {"qsgd": knobs})
    for (updates, *bits), (expected, *expected_bits) in (
        (a["qsgd"], b["qsgd"]) for a, b in zip(typed, plain, strict=True)
    ):
        assert equal(updates, expected) and bits == expected_bits


@pytest.mark.parametrize("seed", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_updates_are_those_of_the_exchange_of_the_same_shards(seed: int) -> None:
    for pairs in pool(4).run(update_and_that_of_exchange, seed):
        assert len(pairs) == 2
        for update, expected in pairs:
            assert torch.equal(update, expected) and update.any()


@pytest.mark.parametrize(
    "names",
    [pytest.param(FEW, id="few"), pytest.param(BETWEEN_NODES, id="all", marks=pytest.mark.slow)],
)
@either_way
def test_choices_agree_between_nodes_and_count_the_bits_of_the_wire(
    between: bool, names: set[str]
) -> None:
    """The replicas of a shard, which are in two nodes, get the same update."""
    carried = sorted(names & (BETWEEN_NODES if between else BY_SHARDS))
    ranks = pool(4).run(run_choices, between, {name: {} for name in carried})
    for name in carried:
        (a, metered, wire), *others = (seen[name] for seen in ranks)
        assert metered == wire > 0, name
        assert all(u.isfinite().all() and u.any() for u in a), name
        if between:
            assert equal(a, others[1][0]), name


@pytest.mark.parametrize(
    "name, knobs",
    [
        pytest.param("top_k", {"fraction": 0.1}, marks=pytest.mark.slow),
        pytest.param("sign_norm", {}, marks=pytest.mark.slow),
        pytest.param("onebit", {"min_size": 0, "bucket_size": 64}, marks=pytest.mark.slow),
        ("qsgd", {"error_feedback": True, "min_size": 0, "bits": 4, "bucket_size": 16}),
    ],
)
@either_way
def test_what_was_sent_and_the_residual_add_up(
    between: bool, name: str, knobs: dict[str, Any]
) -> None:
    for seed in (1, 2):
        for layers in pool(4).run(add_up, between, name, knobs, seed):
            for updates, gradients, residual in layers:
                torch.testing.assert_close(updates + residual, gradients, rtol=1e-4, atol=1e-5)
                assert residual.abs().max() > 1e-4


@pytest.mark.capability
@pytest.mark.parametrize(
    "between",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["by shards", "between nodes"],
)
def test_adamw_accumulation_mixed_precision_and_a_restart(between: bool) -> None:
    knobs = {"error_feedback": True, "min_size": 0, "bits": 4, "bucket_size": 64, "dense_steps": 2}
    ranks = pool(4).run(train_as_people_do, between, "qsgd", knobs)
    for seen in ranks:
        assert sum(seen["losses"][-4:]) < 0.9 * sum(seen["losses"][:4])
        assert equal(seen["parameters"], seen["resumed"])
        assert equal(seen["parameters"], ranks[0]["parameters"])
        assert seen["bits"] == seen["resumed bits"] > 0
        assert seen["steps"] == {"": 0, "0": 16, "2": 16}  # once for two micro-batches


@either_way
def test_a_removed_compressor_leaves_plain_averaging(between: bool) -> None:
    for seen in pool(4).run(remove, between):
        assert close(seen["plain"], seen["removed"]) and close(seen["plain"], seen["none"])
        assert not close(seen["plain"], seen["sign"])
        measured, expected = seen["errors"]
        assert torch.isclose(measured, expected, rtol=1e-4) and expected > 0.1


def test_a_divide_factor_of_the_user() -> None:
    for means, sums in pool(4).run(divide_by_own_factor):
        assert close([4 * x for x in means], sums)


@each(
    ("between", "name"),
    [(False, "top_k"), (True, "top_k"), (True, "signum")],  # signum sends a sign of an overflow
)
def test_a_step_that_overflows_leaves_no_trace(between: bool, name: str) -> None:
    for tensors in pool(4).run(skip_infinite, between, name):
        assert all(x.isfinite().all() for x in tensors)


def test_estimates_of_workers_and_of_their_mean_stay_together_behind_an_overflow() -> None:
    for estimated, true in pool(4).run(estimates_behind_infinity):
        for a, b in zip(estimated, true, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


REFUSALS = {
    "low rank": "compressor=powersgd rank=2: fully_shard cuts gradients into shards, ",
    "drawn": "compressor=global_randk: fully_shard cuts gradients into shards, ",
    "summed": "compressor=maxnorm: a reduce-scatter takes codes of one length, each ",
    "ragged": "compressor=qsgd code=elias_dense: a reduce-scatter takes codes of one length",
    "clipped": "clip_norm=0.5: a process has a shard of the gradient, and not its norm; type ",
    "hierarchical": "exchange=hierarchical: FSDP2 has averaged the gradients of a node ",
    "ready": "compressor=CheckedGradients(inner=SumExchange(codec=QSGD(",
    "HSDP": "the parameters are on a mesh of shape (2, 2), and a compressor takes one",
    "tensor parallel": "tensor parallelism has cut the parameters, too; type compress with ",
    "replicated": "every process has the whole parameters, of which FSDP2 exchanges no shards; ",
    "overlap": "replicas: the processes [0, 1, 2, 3] hold other shards of this model ([0, ",
    "twice": "this module has a compressor, and takes only one; type handle.remove() first",
    "fp16": "reduce_dtype=torch.float16: ",
    "factor": "set_gradient_divide_factor: ",
    "unused": "the parameter group 2 reduces other parameters than before, and the state ",
    "mesh": "replicas=DeviceMesh(",
    "complex": "factor: its gradients are complex, and a compressor takes real ones",
    "meta": "the parameters are on the meta device",
}


@pytest.mark.parametrize(
    "case",
    slow_but(
        ("ragged", "HSDP", "tensor parallel", "overlap", "twice", "fp16", "unused", "complex"),
        [*REFUSALS],
    ),
)
def test_mistakes_are_refused_in_one_sentence(case: str) -> None:
    for sentence in pool(4).run(refusal, case)[:2]:  # those of the first node
        assert (
            sentence.startswith(REFUSALS[case]) and "; type " in sentence and "\n" not in sentence
        )


def test_one_process_is_told_that_nothing_is_compressed() -> None:
    assert pool(1).run(warnings_of_compress) == [["FSDP2 exchanges nothing between shards of one"]]
    assert pool(2).run(warnings_of_compress) == [[], []]


def test_only_groups_that_are_exchanged_count_as_small() -> None:
    for together, frozen in pool(2).run(warnings_of_groups):
        assert not together and frozen == ["compressed: 0 %"]


def test_a_refusal_names_the_methods_that_are_carried() -> None:
    for sentence in pool(4).run(refusal, "low rank"):
        assert set(sentence.partition("default settings: ")[2].split(", ")) == BY_SHARDS


def test_states_of_another_shard_or_model_are_refused() -> None:
    for sentences in pool(4).run(refused_states):
        assert ["load what this worker saved" in sentence for sentence in sentences] == [True] * 2
