"""gcbench.compress in users' training loops, in two processes joined by gloo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from backends import needs_compiler
from engine_cases import STOP, config_like, errors_in_a_loop, train_compiled
from gloo_pool import pool
from library_cases import (
    accumulate,
    backward_under_autocast,
    gradients_of_slices,
    join,
    late_parameters,
    measure_error,
    overflow_of_an_update,
    refusal,
    refused_states,
    remove,
    save_whole,
    send_beside_a_backward_pass,
    send_shapes,
    skip_infinite,
    train_as_people_do,
    warn_of_more_bits,
    wrong_shape,
)
from nightly import each
from pipeline_cases import train_steps
from torch import Tensor

from gcbench.core.comm.transport import share_of_hosts
from gcbench.core.fields import format_value


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def close(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.allclose(x, y, rtol=1e-5, atol=1e-7) for x, y in zip(a, b, strict=True))


def test_compiled_codecs_change_nothing() -> None:
    needs_compiler()
    config = config_like("qsgd", "plain", {})
    for trained in pool(2).run(train_compiled, config):
        (eager, bits), (compiled, same_bits) = trained[False], trained[True]
        assert equal(eager, compiled) and bits == same_bits


@pytest.mark.parametrize(
    "name, knobs",
    [
        pytest.param("powersgd", {"rank": 2}, marks=pytest.mark.slow),
        ("qsgd", {"bits": 4, "min_size": 0, "error_feedback": True, "alpha": 0.2, "beta": 0.9}),
        pytest.param("signum", {}, marks=pytest.mark.slow),
    ],
)
def test_adamw_accumulation_autocast_and_a_restart(name: str, knobs: dict[str, float]) -> None:
    a, b = pool(2).run(train_as_people_do, name, knobs)
    assert sum(a["losses"][-5:]) < 0.8 * sum(a["losses"][:5])
    assert equal(a["parameters"], b["parameters"])
    assert equal(a["parameters"], a["resumed"]) and equal(b["parameters"], b["resumed"])
    assert a["bits"] == a["resumed bits"] > 0
    typed = " ".join([name, *(f"{key}={format_value(value)}" for key, value in knobs.items())])
    assert a["handle"].startswith(f"<gcbench.compress {typed}: 2 workers, 20 exchanges, ")
    values = sum(p.numel() for p in a["parameters"])
    assert a["ratio"] == 32 * 20 * values / a["bits"]
    assert a["memory"] >= 4 * values * (name != "signum")  # the residual


def test_the_error_is_that_of_the_update_beside_the_mean() -> None:
    for knobs in ({"bits": 2, "min_size": 0}, {"bits": 2, "min_size": 0, "error_feedback": True}):
        for measured, expected in pool(2).run(measure_error, "qsgd", knobs):
            assert measured == pytest.approx(expected, rel=1e-5) and measured > 0.1
    assert all(error < 1e-6 for error, _ in pool(2).run(measure_error, "none", {}))


@pytest.mark.parametrize(
    "choice, knobs",
    [
        ("qsgd", {"bits": 2, "min_size": 0, "clip_norm": 0.1}),
        ("qsgd", {"bits": 2, "min_size": 0, "overlap": True}),
        ("signum", {"momentum": 0.9}),
        ("dion", {"rank": 2}),
    ],
)
def test_the_error_is_that_of_a_run(choice: str, knobs: dict[str, Any]) -> None:
    """That of what was coded, such as clipped gradients or momenta; signs have a cosine only."""
    typed = {key: value for key, value in knobs.items() if key != "overlap"}
    config = config_like(choice, "plain", typed)
    in_loops = pool(2).run(errors_in_a_loop, config, knobs)
    for measured, run in zip(in_loops, pool(2).run(train_steps, config, STOP), strict=True):
        relative, cosine = run.sample.get("relative", math.nan), run.sample["cosine"]
        assert measured == pytest.approx((relative, cosine), rel=1e-6, nan_ok=True)


def test_autocast_does_not_reach_into_the_compressor() -> None:
    (inside, _), (outside, _) = (
        pool(2).run(backward_under_autocast, enabled) for enabled in (True, False)
    )
    assert equal(inside, outside)


def test_micro_batches_are_compressed_once() -> None:
    (whole, bits), _ = pool(2).run(accumulate, 1)
    (parts, bits_of_parts), _ = pool(2).run(accumulate, 4)
    assert bits == bits_of_parts
    # Summing in another order may move a value to the next quantization level.
    assert sum((a - b).abs().gt(1e-6).sum() for a, b in zip(whole, parts, strict=True)) < 5


def test_workers_with_fewer_inputs_join() -> None:
    """A worker without inputs sends zeros plus what its residual holds."""
    assert pool(2).run(join, "powersgd", {"rank": 2}) == [{"gradient": 5}] * 2


def test_a_removed_compressor_leaves_plain_averaging() -> None:
    for seen in pool(2).run(remove):
        assert close(seen["plain"], seen["removed"]) and close(seen["plain"], seen["none"])
        assert not close(seen["plain"], seen["sign"])


@pytest.mark.parametrize(
    "name, knobs",
    [
        ("powersgd", {"rank": 1}),
        ("signum", {}),  # sends a sign of an overflow
        ("random_k", {"rank": 1}),  # sends most values in other steps
        ("demo", {}),
    ],
)
def test_a_step_that_overflows_is_seen_and_leaves_no_trace(
    name: str, knobs: dict[str, Any]
) -> None:
    for overflowed, after, state in pool(2).run(skip_infinite, name, knobs):
        assert not any(g.isfinite().any() for g in overflowed)
        assert state and all(x.isfinite().all() for x in [*after, *state])


@pytest.mark.parametrize(
    "case, says",
    [
        ("module", "Net is not a DistributedDataParallel, and fully_shard did not shard it; type "),
        ("unused", "exchange=scatter_coded: DDP drops updates of unused parameters, which a "),
        ("skipped", "skip_all_reduce_unused_params=True: DDP leaves out buckets, also the last "),
        ("overlap", "overlap='yes': type True, False or 'auto'"),
        ("global", "overlap=True sends tensors as their gradients arrive, and this method must "),
        ("overlaps", "worker 1 called compress with overlap=True, and worker 0 with False; type "),
        ("static", "static_graph=True: in the first step, DDP has a bucket for each type of "),
        ("name", "compressor=powersdg: there is no such method; type powersgd"),
        ("knob", "bits: compressor=powersgd has no such knob; it has rank, "),
        ("range", "rank=0: type a whole number of at least 1, as in rank=2"),
        ("text", "rank=a b: type a whole number of at least 1, as in rank=2"),
        ("levels", "levels=100 needs 8 bits per code, not bits=4"),
        ("codecs", "codec_backend=fast: type auto, eager or compiled"),
        ("momentum", "compressor=onebit_adam codes your optimizer's momentum, which compress "),
        ("twice", "this DistributedDataParallel has a communication hook"),
        ("hook", "this DistributedDataParallel has a communication hook"),
        ("sparse", "Embedding: a compressor takes no sparse gradients; type sparse=False where "),
        ("complex", "factor: its gradients are complex, and a compressor takes real ones; type "),
        (
            "class",
            "compressor=PowerSGD: PowerSGD.__init__() missing 1 required positional argument",
        ),
        ("object", "compressor=3: this is not a compressor; type the name of a method"),
        ("seed", "seed=one: type a whole number of at least 0"),
        ("seeds", "worker 1 called compress with seed=1, and worker 0 with 0; type the same "),
        ("knobs", "worker 1 called compress with compressor=rank=2, and worker 0 with rank=1; "),
        ("nodes", "exchange=hierarchical: process_group has 1 of 2 processes, and nodes need "),
        ("node", "workers_per_node=2: all workers would be one node, and nothing would be "),
        ("compiled", "torch.compile made this module, which has no hooks; type compress before "),
    ],
)
def test_mistakes_are_refused_in_one_sentence(case: str, says: str) -> None:
    for sentence in pool(2).run(refusal, case):
        assert sentence.startswith(says) and "\n" not in sentence


def test_a_state_of_another_compressor_is_refused() -> None:
    for sentences in pool(2).run(refused_states):
        assert ["load what this worker saved" in sentence for sentence in sentences] == [True] * 5


def test_a_parameter_that_ddp_does_not_know_is_named() -> None:
    for sentences in pool(2).run(late_parameters):
        assert len(sentences) == 3
        for sentence in sentences:
            assert sentence.startswith("layers.3.weight: DDP does not exchange this parameter")
            assert "; type " in sentence and "\n" not in sentence


def test_an_update_too_large_for_its_parameters_leaves_no_trace() -> None:
    for (first, second), (residual, unchanged) in pool(2).run(overflow_of_an_update):
        assert first.tolist() == [40_000, 0] and second.isnan().all()
        assert residual.tolist() == [[0, 39_008]] == unchanged.tolist()  # 39,000 in float16


def test_messages_of_the_user_are_not_mixed_up_with_codes() -> None:
    assert pool(2).run(send_beside_a_backward_pass) == [1, 0]


def test_a_compressed_module_can_be_saved_whole() -> None:
    assert pool(2).run(save_whole) == [True, True]


def test_an_update_of_another_shape_is_refused() -> None:
    for sentence in pool(2).run(wrong_shape):
        assert sentence.startswith("the compressor returned an update of layers.2.bias with the ")


def test_experts_are_matrices_and_a_convolution_is_one() -> None:
    """Rank 1 of 6 x 4 * 5, three of 8 x 10, 10 x 46, and a matrix that is smaller than its factors.

    A 1-D convolution of three dimensions is no stack of matrices.
    """
    for bits, update in pool(2).run(send_shapes):
        assert bits == 32 * ((6 + 4 * 5) + 3 * (8 + 10) + (10 + 46) + 5)
        assert update.shape == (6, 4, 5) and torch.linalg.matrix_rank(update.flatten(1)) == 1


def test_more_bits_than_fp32_are_told_once() -> None:
    """The factors of a matrix of 1 x 5 are a value larger than it is."""
    for said in pool(2).run(warn_of_more_bits):
        assert said == [
            "compressed: 1.2 times as many bits as of fp32 gradients; type min_ratio=1, or a lower "
            "rank"
        ]


def test_a_parameter_with_gaps_gets_its_own_gradient() -> None:
    for seen in pool(2).run(gradients_of_slices):
        assert close(seen[True], seen[False])


@each(("ranks", "each"), [(range(8), 4), (range(0, 8, 2), 2), ([3, 7], 1), ([0, 1, 4], None)])
def test_hosts_have_as_many_workers_as_the_group_has_there(
    ranks: Sequence[int], each: int | None
) -> None:
    """Each of two hosts has four processes, of which a DDP's own group may have some."""
    assert share_of_hosts(ranks, 4) == each
