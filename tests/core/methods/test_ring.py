"""A ring decodes, adds and codes again at every hop."""

from __future__ import annotations

import pytest
import torch
from layout_cases import one_tensor
from method_cases import aggregate, build_method, flat, gradients

from gcbench.core.codecs.noise import Noise
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import State, Step
from gcbench.core.exchange.ring import RingExchange
from gcbench.core.exchange.shards import shard_exchange
from gcbench.core.methods.dense import Cast, Dense
from gcbench.core.methods.loco import NearestLevel
from gcbench.core.methods.qsgd import QSGD
from gcbench.runner.network import Link, Network

NOTHING = Noise(torch.zeros(1, 2, dtype=torch.int32), ((0, 40),))


def test_every_hop_codes_the_sum_so_far() -> None:
    """Chunk c begins at worker c - 1, and goes down to worker c, hop by hop."""
    workers, size = 5, 40
    codec = NearestLevel(7, bucket_size=16)
    x = one_tensor(range(workers), workers * size)["w"]
    update = aggregate(RingExchange(codec), {"w": x}).update["w"][0]
    for c, chunk in enumerate(x.view(workers, workers, size).unbind(1)):
        total = torch.zeros(1, size)
        for hop in range(1, workers + 1):
            message = codec.encode(total + chunk[(c - hop) % workers] / workers, (size,), NOTHING)
            total = torch.zeros(1, size)
            codec.decode_add(message, (size,), total)
        assert torch.equal(update[c * size : (c + 1) * size], total[0])


def test_a_ring_of_casts_is_an_all_reduce_of_halves() -> None:
    """For gradients that a half has, and chunks of the same size."""
    x = one_tensor(range(4), 4 * 8 * 25)["w"].bfloat16().float()
    ours = aggregate(RingExchange(Cast("bfloat16")), {"w": x}).update["w"]
    assert torch.equal(ours, aggregate(Dense("bfloat16"), {"w": x}).update["w"])


@pytest.mark.parametrize("choice", ["qsgd", "mxfp4"])
def test_what_workers_count_as_having_sent_has_the_update_as_its_mean(choice: str) -> None:
    settings = {"exchange": "ring", "min_size": 0}
    for error_feedback in (False, True):
        method, state = build_method(choice, **settings, error_feedback=error_feedback), State()
        for number in range(3):
            grads = gradients(range(4), number)
            out = aggregate(method, grads, number=number, state=state)
            state = out.state
            sent = flat(out.sent()).mean(0)
            torch.testing.assert_close(sent, flat(out.update)[0], rtol=1e-4, atol=1e-5)


def test_the_error_of_an_unbiased_code_grows_with_hops() -> None:
    """Of independent gradients, the sum after h of W hops has a variance of h, and its coding an
    error of that size: (W + 1) / 2 times that of a gather in all.

    Equal gradients lie between the same two levels at every hop, as the scale follows the sum. So
    many roundings have the chances of one, and the error that of one coding.
    """
    n = 2**15
    x = torch.randn(64, n, generator=torch.Generator().manual_seed(0))

    def vnmse(exchange: str, rows: torch.Tensor) -> float:
        method = build_method("qsgd", exchange=exchange, min_size=0, bits=8)
        mean = rows.mean(0)
        update = aggregate(method, {"w": rows}).update["w"][0]
        return float((update - mean).square().sum() / mean.square().sum())

    one = vnmse("gather", x[:1])
    for workers in (4, 16, 64):
        equal = x[:1].repeat(workers, 1)
        for exchange, rows, expected in (
            ("ring", x[:workers], (workers + 1) / 2),
            ("gather", x[:workers], 1),
            ("ring", equal, 1),
            ("gather", equal, 1 / workers),
        ):
            assert vnmse(exchange, rows) == pytest.approx(one * expected, rel=0.05), exchange
    assert RingExchange(QSGD(7)).properties.unbiased


def test_hops_are_counted_and_predicted_one_by_one() -> None:
    comm, n = Comm(4), 4 * 64
    aggregate(build_method("nvfp4", exchange="ring"), one_tensor(range(4), n), comm=comm)
    by_kind = {k.collective: t for k, t in comm.meter.totals_by_worker[0].items()}
    hop = 64 * 4 + 4 * 8 + 32
    assert (by_kind["ring_hop"].messages, by_kind["ring_hop"].sent_bits) == (3, 3 * hop)
    assert (by_kind["all_gather"].messages, by_kind["all_gather"].received_bits) == (1, 3 * hop)
    network = Network(4, 1, Link(1e9), Link(1e3, 0.5))
    assert network.seconds("ring_hop", hop) == 0.5 + hop / 1e3


def test_shards_of_a_ring_are_its_sums_before_the_last_coding() -> None:
    x = one_tensor(range(4), 4 * 64)
    step = Step(0, 1, range(4), {"w": 0})
    shards = shard_exchange(build_method("mxfp8", exchange="ring"))
    out = shards.aggregate(x, State(), Comm(4), step)
    whole = aggregate(build_method("mxfp8", exchange="ring"), x).update["w"]
    again = aggregate(build_method("mxfp8"), {"w": out.update["w"].view(1, -1)}).update["w"]
    assert torch.equal(again, whole)
    torch.testing.assert_close(out.sent()["w"].mean(0), out.update["w"].flatten())
    halves = shard_exchange(build_method("bf16")).aggregate(x, State(), Comm(4), step)
    in_fp32 = shard_exchange(build_method("bf16", accumulate="fp32"))
    exact = x["w"].double().mean(0)
    errors = [
        float((u.flatten() - exact).norm())
        for u in (halves.update["w"], in_fp32.aggregate(x, State(), Comm(4), step).update["w"])
    ]
    assert errors[0] > 1.2 * errors[1] > 0
