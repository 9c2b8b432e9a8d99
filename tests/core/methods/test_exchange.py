"""An exchange changes how codes are sent, not what they mean."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from gloo_pool import pool
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_cases import one_tensor, wire_bits_over_gloo
from method_cases import aggregate, flat, gradients
from nightly import each

from gcbench.core.codecs.packing import ONE_SPAN, Units, pack_lanes, unpack_lanes
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Given,
    Grads,
    Properties,
    State,
    Step,
    add_scaled,
    flatten,
)
from gcbench.core.exchange.shards import shard_exchange
from gcbench.core.exchange.sums import sum_codes
from gcbench.core.methods.bucketed import Parameters
from gcbench.core.methods.dense import Dense
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.methods.sign import ScaledSign
from gcbench.core.wrappers.build import build, build_exchange
from gcbench.runner.check.promises import VECTORS, check_contractive


def mean_of(grads: Grads) -> torch.Tensor:
    return flat({k: g.mean(0, keepdim=True) for k, g in grads.items()})


@each("exchange", ["gather", "scatter", "scatter_coded", "sum"])
def test_every_way_is_unbiased_and_workers_round_by_chances_of_their_own(
    exchange: Any,
) -> None:
    """The mean of what four workers with the same gradient send has a quarter of their variance.

    Coding that mean again adds at most the variance of one worker.
    """
    compressor, steps = build_exchange(QSGD(3, bucket_size=16), exchange), 300
    grads = {k: g.expand(4, *g.shape[1:]).contiguous() for k, g in gradients(range(1), 0).items()}
    outs = [aggregate(compressor, grads, number=number) for number in range(steps)]
    sent = torch.stack([flat(out.sent()) for out in outs])
    alone = float(sent.var(0).sum(1).mean())  # the variance of one worker
    assert float(sent.mean(1).var(0).sum()) == pytest.approx(alone / 4, rel=0.1)
    updates = torch.stack([flat(out.update)[0] for out in outs])
    spread = alone * (1.25 if exchange == "scatter_coded" else 0.25)
    error = float((updates.mean(0) - mean_of(grads)[0]).norm())
    assert error < 2 * (spread / steps) ** 0.5


@each("exchange", ["scatter", "scatter_coded", "sum"])
def test_enough_levels_give_the_mean(exchange: Any) -> None:
    grads = gradients(range(4), 0)
    out = aggregate(build_exchange(QSGD(127, bucket_size=8), exchange), grads)
    error = (flat(out.update) - mean_of(grads)).norm() / mean_of(grads).norm()
    assert error < 0.02


def test_scattered_means_travel_exactly() -> None:
    """The shards are exact means of what each worker sent."""
    grads = gradients(range(4), 0)
    out = aggregate(build_exchange(QSGD(3, bucket_size=16), "scatter"), grads)
    torch.testing.assert_close(flat(out.update), mean_of(out.sent()), rtol=1e-6, atol=1e-7)


def test_summed_codes_are_the_sum_of_what_was_sent() -> None:
    grads = gradients(range(4), 0)
    out = aggregate(build_exchange(QSGD(3, bucket_size=16), "sum"), grads)
    torch.testing.assert_close(flat(out.update), mean_of(out.sent()), rtol=1e-6, atol=1e-7)


@each("exchange", ["scatter", "scatter_coded"])
def test_scattered_signs_are_safe_under_error_feedback(exchange: Any) -> None:
    """A worker's residual is the error of its own code, whatever the owner of a shard does."""
    compressor = build_exchange(ScaledSign(bucket_size=16), exchange)
    for kind in VECTORS:
        check_contractive(compressor, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(ScaledSign(bucket_size=16), exchange=exchange, error_feedback=True)


class RoundedDown(QSGD):
    """A biased code that rounds down values between two levels."""

    @property
    def properties(self) -> Properties:
        return Properties(contractive=True)

    def code(
        self, v: torch.Tensor, parameters: Parameters, words: torch.Tensor | None
    ) -> torch.Tensor:
        return super().code(v, parameters, torch.full(v.shape, -(2**31), dtype=torch.int32))


def centered_sum(codes: torch.Tensor, highest: int, comm: Comm) -> torch.Tensor:
    one = torch.ones(1, 1)
    return sum_codes(codes, highest, comm, Units(1, one, one, ONE_SPAN), lambda sums: sums)


def test_sums_that_no_float_holds_lose_nothing() -> None:
    """The sum of 4096 codes around 4096 is near 2^24, above which float32 has no odd numbers."""
    codes = torch.full((4096, 3), 4096, dtype=torch.int16)
    codes[7] += torch.tensor([1, -1, 0], dtype=torch.int16)
    assert centered_sum(codes, 8192, Comm(4096)).tolist() == [[1.0, -1.0, 0.0]]


def test_what_a_biased_second_coding_leaves_out_is_made_up_for_by_the_owner() -> None:
    """The owner of a shard adds what all earlier steps left out, not only the last one.

    The workers' ones and zeros are coded exactly. Their mean, a quarter, is rounded down to zero
    until four steps have added up to one.
    """
    grads = {"w": torch.zeros(4, 64)}
    grads["w"][1] = 1
    grads["w"][:, ::16] = 1  # so that the scale of every bucket is 1
    compressor, state, total = (
        build_exchange(RoundedDown(1, bucket_size=16), "scatter_coded"),
        State(),
        torch.zeros(1, 64),
    )
    for number in range(40):
        out = aggregate(compressor, grads, number=number, state=state)
        state, total = out.state, total + out.update["w"]
    torch.testing.assert_close(total / 40, grads["w"].mean(0, keepdim=True))


@each(("levels", "workers"), [(1, 2), (7, 9), (1, 63), (7, 16), (127, 1024), (127, 4)])
def test_sums_of_the_highest_codes_fit_in_lanes_no_wider_than_the_smallest_integer(
    levels: int, workers: int
) -> None:
    """They take fewer than 8 bits per value if workers times levels is at most 63."""
    comm, n = Comm(workers), 840  # a multiple of every number of lanes up to 8
    codes = torch.full((workers, n), 2 * levels, dtype=torch.uint8)
    summed = centered_sum(codes, 2 * levels, comm)
    assert torch.equal(summed, torch.full((1, n), float(workers * levels)))
    width = comm.meter.sent_bits[0] / n
    safe = next(bits for bits in (8, 16, 32, 64) if 2 * levels * workers < 2**bits)
    assert width <= safe
    assert workers * levels > 63 or width < 8


@given(bits=st.integers(1, 31), n=st.integers(1, 70), seed=st.integers(0, 99))
def test_lanes_round_trip(bits: int, n: int, seed: int) -> None:
    codes = torch.randint(
        0, 2 ** min(bits, 8), (2, n), generator=torch.Generator().manual_seed(seed)
    ).to(torch.uint8)
    assert torch.equal(unpack_lanes(pack_lanes(codes, bits), n, bits), codes.to(torch.int32))


def test_a_worker_receives_less_when_codes_are_scattered_or_summed() -> None:
    grads = {"w": torch.randn(16, 40_000, generator=torch.Generator().manual_seed(0))}
    received = {}
    for exchange in ("gather", "scatter", "scatter_coded", "sum"):
        comm = Comm(16)
        build_exchange(QSGD(7, bucket_size=512), exchange).aggregate(
            grads, State(), comm, Step(0, 1, range(16), {"w": 0})
        )  # type: ignore[arg-type]
        received[exchange] = comm.meter.received_bits[0] / 40_000
    assert received["scatter_coded"] < received["sum"] < received["scatter"] < received["gather"]
    assert received["scatter_coded"] < 2 * 4.2 and received["gather"] > 15 * 4


def test_what_a_worker_receives_is_what_was_counted_by_hand() -> None:
    """Of 960 values with 7 levels, in 4 bits each and one scale, by virtual and real workers."""
    n, lane_bits = 960, {2: 5, 3: 6, 4: 6}  # lanes of 64-bit words
    for workers in (2, 3, 4):
        others, shard = workers - 1, 4 * n // workers + 32
        ring = 2 * others / workers  # of an all-reduce, per bit of the message
        lanes = 64 * n / (64 // lane_bits[workers])
        by_hand = {
            "none": ring * 32 * n,
            "gather": others * (4 * n + 32),
            "scatter": others * (shard + 32 * n // workers),
            "scatter_coded": others * (shard + shard),
            "ring": others * shard + others * shard,  # a hop at a time, and the last code to all
            "sum": ring * (lanes + 32),
        }
        codec = QSGD(7, bucket_size=n)
        compressors = {
            key: build(Dense() if key == "none" else codec, exchange=key)
            for key in by_hand
            if key != "none"
        } | {"none": build(Dense())}
        if workers == 4:
            # In a node of two a gradient's ring; half of a code from the other node, and the other
            # half from one's neighbor.
            by_hand["hierarchical"] = 32 * n + (4 * n + 32)
            compressors["hierarchical"] = build(codec, exchange="hierarchical", workers_per_node=2)
        for key, compressor in compressors.items():
            comm = Comm(workers)
            aggregate(compressor, one_tensor(range(workers)), comm=comm)
            assert comm.meter.wire_bits == [pytest.approx(by_hand[key])] * workers, key
        for real in pool(workers).run(wire_bits_over_gloo, compressors, workers):
            assert real == {key: [pytest.approx(bits)] for key, bits in by_hand.items()}


@pytest.mark.filterwarnings("ignore:error_feedback=true")
@settings(deadline=None, max_examples=20)
@given(size=st.integers(1, 6).map(lambda eights: 8 * eights), number=st.integers(0, 9))
def test_shards_are_those_of_exchange_scatter_and_the_rest_is_remembered(
    size: int, number: int
) -> None:
    generator = torch.Generator().manual_seed(size + number)
    grads = {"flat": torch.randn(4, 4 * size, generator=generator)}
    residual = {"flat": torch.randn(4, 4 * size, generator=generator)}
    compressors = [
        build(QSGD(7, bucket_size=16), exchange=exchange, error_feedback=True)
        for exchange in ("gather", "scatter")
    ]
    kept, whole = (
        aggregate(compressor, grads, number=number, state=State(per_worker=residual))
        for compressor in (shard_exchange(compressors[0]), compressors[1])
    )
    assert torch.equal(kept.update["flat"].flatten(), whole.update["flat"].flatten())
    sent, left = kept.sent()["flat"], kept.state.per_worker["flat"]
    assert torch.equal(left, whole.state.per_worker["flat"])
    torch.testing.assert_close(sent + left, grads["flat"] + residual["flat"])
    torch.testing.assert_close(sent.mean(0), kept.update["flat"].flatten())


@each("workers", [1, 3])
def test_a_sum_of_all_tensors_end_to_end_is_that_of_each(workers: int) -> None:
    def draw() -> Grads:
        kernels = torch.randn(workers, 3, 5, 5, 4).permute(0, 4, 1, 2, 3)  # in channels_last order
        vectors = {"vector": torch.randn(workers, 7), "scalar": torch.randn(workers)}
        return {**vectors, "kernels": kernels, "matrix": torch.randn(workers, 5, 4)}

    x, y = draw(), draw()
    assert torch.equal(Given(x, y, 0.3).flat(), flatten(add_scaled(x, y, 0.3)))
