"""The predicted seconds of a step, against a calculation by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gcbench.core.comm.meter import Message
from gcbench.core.errors import ConfigError
from gcbench.runner.network import Link, Network
from gcbench.runner.predict.devices import Device, format_rate, format_seconds, interpolate
from gcbench.runner.predict.model import (
    FASTEST,
    SLOWEST,
    Cluster,
    CodecSeconds,
    Compute,
    Method,
    exposed_seconds,
    find_paying,
    find_verdicts,
    predict,
)

SLOW = Link(1e9, 1e-4)
CLUSTER = Cluster(SLOW, Link(1e12))
NO_CODEC = CodecSeconds(0.0)
COMPUTE = Compute(0.1, 0.06, 32)


def sending(
    collective: str,
    bits: float,
    codec: CodecSeconds = NO_CODEC,
    title: str = "a method",
    number: int = 1,
) -> Method:
    message = Message("all", collective, number, bits)  # type: ignore[arg-type]
    return Method(title, title, lambda workers: [message], codec, dense_bytes=4_000_000)


DENSE = sending("all_reduce", 3.2e7, title="none")


def test_a_ring_of_four_by_hand() -> None:
    """2 x 3 rounds of a quarter of 32 Mbit, each with its latency."""
    found = predict(DENSE, 4, CLUSTER, COMPUTE)
    assert found.exchange_seconds == pytest.approx(6 * (8e6 / 1e9 + 1e-4))
    assert found.step_seconds == pytest.approx(0.1 + 6 * 0.0081)
    assert found.samples_per_second == pytest.approx(4 * 32 / found.step_seconds)
    assert found.epoch_seconds(1280) == pytest.approx(10 * found.step_seconds)
    assert found.epoch_seconds(1281) == found.epoch_seconds(1280)  # a run drops an incomplete batch
    assert found.of_bound == pytest.approx(found.step_seconds / 0.1)


def test_a_gather_decodes_the_message_of_every_worker() -> None:
    """3 rounds of 4 Mbit in two messages; a worker codes its gradient and decodes 3 messages."""
    found = predict(
        sending("all_gather", 4e6, CodecSeconds(0.005, 0.001), number=2), 4, CLUSTER, COMPUTE
    )
    assert found.exchange_seconds == pytest.approx(3 * (4e6 / 1e9 + 2 * 1e-4))
    assert found.codec_seconds == pytest.approx(0.005 + 3 * 0.001)


def test_one_worker_exchanges_nothing_and_codes_nothing() -> None:
    found = predict(sending("all_gather", 4e6, CodecSeconds(0.005, 0.001)), 1, CLUSTER, COMPUTE)
    assert (found.step_seconds, found.of_bound, found.sent_bits) == (0.1, 1.0, 0)


def test_what_backward_hides() -> None:
    """Four buckets are exchanged during a backward pass of 60 ms, the last one at its end.

    A short exchange leaves one bucket exposed, a long one all but 45 ms.
    """
    assert exposed_seconds(0.02, 0.06, 1) == 0.02
    assert exposed_seconds(0.02, 0.06, 4) == pytest.approx(0.005)
    assert exposed_seconds(0.2, 0.06, 4) == pytest.approx(0.2 - 0.045)


def test_a_step_has_a_part_of_an_exchange() -> None:
    """With an exchange every H steps, a step has 1/H of its seconds, codec seconds and bits."""
    method = sending("all_gather", 4e6, CodecSeconds(0.005, 0.001), title="quick")
    once, seldom = (predict(method.at_every(h), 4, CLUSTER, COMPUTE) for h in (1, 8))
    assert (once.method, seldom.method) == ("quick", "quick every=8")
    assert seldom.exposed_seconds == once.exposed_seconds / 8 > 0
    assert seldom.exchange_seconds == once.exchange_seconds / 8
    assert seldom.codec_seconds == once.codec_seconds / 8
    assert seldom.sent_bits == once.sent_bits / 8
    assert seldom.compute_seconds == once.compute_seconds
    late = predict(method.at_every(8, delay=1), 4, CLUSTER, COMPUTE._replace(seconds=1e-3))
    assert late.method == "quick every=8 delay=1"
    assert late.exposed_seconds == pytest.approx(seldom.exposed_seconds - 1e-3 / 8)
    assert predict(method.at_every(8, delay=1), 4, CLUSTER, COMPUTE).exposed_seconds == 0


def test_overlap_needs_several_buckets_and_a_method_that_takes_them() -> None:
    large = replace(DENSE, dense_bytes=100 * 2**20)
    alone = predict(large, 4, CLUSTER, COMPUTE)
    assert predict(large, 4, CLUSTER, COMPUTE, overlap=True).step_seconds < alone.step_seconds
    whole = replace(large, in_buckets=False)
    assert predict(whole, 4, CLUSTER, COMPUTE, overlap=True).step_seconds == alone.step_seconds


def test_nodes_share_their_link() -> None:
    """A scatter among 8 workers: with four per node, four times as much crosses each link."""
    single, shared = Cluster(SLOW, Link(1e12)), Cluster(SLOW, Link(1e12), 4)
    method = sending("all_to_all", 7e6)
    apart, together = (predict(method, 8, c, COMPUTE).exchange_seconds for c in (single, shared))
    assert apart == pytest.approx(7e6 / 1e9 + 7e-4)
    assert together == pytest.approx(4 * 4 * 1e6 / 1e9 + 4e-4)
    with pytest.raises(
        ConfigError, match="workers=6 do not fill nodes of workers_per_node=4; type workers=8"
    ):
        predict(method, 6, shared, COMPUTE)


def test_the_threshold_is_where_the_steps_are_equally_long() -> None:
    """For two workers, 32 Mbit take as long as 4 Mbit and 10 ms of coding at 28 Mbit / 10 ms.

    There are 2 latencies of 0.1 ms without compression, and 1 with it.
    """
    method = sending("all_gather", 4e6, CodecSeconds(0.010))
    ((low, high),) = find_paying(method, DENSE, 2, CLUSTER, COMPUTE)
    assert low == SLOWEST and high == pytest.approx(28e6 / (0.010 - 1e-4), rel=1e-5)
    quick, slow = sending("all_gather", 4e6), sending("all_gather", 4e7, CodecSeconds(1.0))
    assert find_paying(quick, DENSE, 2, CLUSTER, COMPUTE) == [(SLOWEST, FASTEST)]
    assert find_paying(slow, DENSE, 2, CLUSTER, COMPUTE) == []


def test_with_overlap_a_method_may_pay_between_two_rates() -> None:
    """It sends a little more, in half as many messages, and codes for 1 ms.

    The bits cost more than it gains on slow links. On fast ones the backward pass hides the
    exchanges, so that only the coding remains.
    """
    dense, method = (
        replace(sending(*sent), dense_bytes=250_000_000)
        for sent in (("all_reduce", 1e9), ("all_gather", 1.001e9 / 32, CodecSeconds(0.001)))
    )
    ((low, high),) = find_paying(method, dense, 64, CLUSTER, COMPUTE, overlap=True)
    assert SLOWEST < low < high < FASTEST
    for rate, pays in ((low / 2, False), (2 * low, True), (high / 2, True), (2 * high, False)):
        ours, theirs = (
            predict(m, 64, CLUSTER.at(rate), COMPUTE, overlap=True).step_seconds
            for m in (method, dense)
        )
        assert (ours < theirs) == pays


def test_compression_pays_more_where_the_network_is_slower() -> None:
    method = sending("all_reduce", 4e6, CodecSeconds(0.010))
    gains = []
    for rate in (1e8, 1e9, 1e10, 1e11):
        ours, dense = (
            predict(m, 16, CLUSTER.at(rate), COMPUTE).step_seconds for m in (method, DENSE)
        )
        gains.append(dense / ours)
    assert gains == sorted(gains, reverse=True) and gains[0] > 1 > gains[-1]


def test_answers_are_ranked_by_what_they_gain() -> None:
    quick, slow = (
        sending("all_reduce", 4e6, CodecSeconds(0.010), "quick"),
        sending("all_reduce", 4e6, CodecSeconds(10.0), "slow"),
    )
    networks = {"slow": CLUSTER, "fast": CLUSTER.at(2e9)}
    found = find_verdicts([slow, quick, DENSE], DENSE, [2, 16], networks, COMPUTE)
    assert [a.method.title for a in found] == ["quick", "none", "slow"], "the fastest first"
    by_hand = predict(DENSE, 16, CLUSTER, COMPUTE), predict(quick, 16, CLUSTER, COMPUTE)
    assert found[0].speedups["slow"][1] == by_hand[0].step_seconds / by_hand[1].step_seconds
    assert found[0].speedups["slow"][1] > found[0].speedups["fast"][1] > 1
    assert found[1].speedups == {"slow": [1, 1], "fast": [1, 1]}
    assert found[2].paying[0][0].high == pytest.approx(28e6 / 10, rel=1e-3)


def test_a_codec_may_cost_copies_of_the_gradient() -> None:
    """A copy moves 4 bytes per value, at the speed of the device."""
    codecs = {"qsgd": {"aggregate_copies": 3, "decode_copies": 1}}
    device = Device("mine", "a device", 1e9, 0.6, codecs, {})
    assert device.codec("qsgd", 10**6) == CodecSeconds(3 * 4e6 / 1e9, 4e6 / 1e9)
    assert device.codec("none", 10**6) == CodecSeconds(0.0)


@pytest.mark.parametrize(
    ("level", "collective", "gradients"),
    [("all", "all_gather", 8), ("between", "all_gather", 2), ("all", "all_to_all", 2)],
)
def test_codes_are_decoded_of_every_worker_or_node_or_shard(
    level: str, collective: str, gradients: int
) -> None:
    message = Message(level, collective, 1, 4e6)  # type: ignore[arg-type]
    method = Method("m", "m", lambda workers: [message], CodecSeconds(0.005, 0.001), 4_000_000)
    found = predict(method, 8, Cluster(SLOW, Link(1e12), 4), COMPUTE)
    assert found.codec_seconds == pytest.approx(0.005 + (gradients - 1) * 0.001)


def test_seconds_and_rates_have_the_unit_that_suits_them() -> None:
    seconds = {"1,234 s": 1234.0, "1.5 s": 1.5, "20 ms": 0.02, "3 us": 3e-6}
    assert [format_seconds(value) for value in seconds.values()] == [*seconds]
    rates = {"2 Tbit/s": 2e12, "9.5 Gbit/s": 9.5e9, "100 Mbit/s": 1e8, "500 bit/s": 500.0}
    assert [format_rate(value) for value in rates.values()] == [*rates]


def test_what_rounds_to_the_next_unit_is_said_in_it() -> None:
    seconds = {"1 s": 0.9996, "999 ms": 0.9994, "1 ms": 0.0009997, "1,000 s": 999.6, "999 s": 999.4}
    assert [format_seconds(value) for value in seconds.values()] == [*seconds]
    assert format_seconds(0) == "0 us"
    rates = {"1 Gbit/s": 9.996e8, "999 Mbit/s": 9.994e8, "10 kbit/s": 1e4}
    assert [format_rate(value) for value in rates.values()] == [*rates]


def test_seconds_lie_on_a_line_between_two_sizes_and_in_proportion_beyond() -> None:
    table = {16: 0.05, 32: 0.07}
    found = [interpolate(table, size) for size in (8, 16, 20, 32, 64)]
    assert found == pytest.approx([0.025, 0.05, 0.055, 0.07, 0.14])
    device = Device("mine", "a device", 1e9, 0.6, {}, {"mlp": {"seconds": table}})
    assert device.compute("mlp", 20) == pytest.approx((0.055, 0.6 * 0.055, 20))


def test_a_bucket_has_25_mib_and_the_exposed_part_is_that_of_its_number() -> None:
    large = replace(DENSE, dense_bytes=100 * 2**20)
    found = predict(large, 4, CLUSTER, COMPUTE, overlap=True)
    assert found.exposed_seconds == exposed_seconds(found.exchange_seconds, 0.06, 4)


def test_fewer_workers_than_a_node_holds_use_its_links_alone() -> None:
    inside = Link(1e12)
    assert Cluster(SLOW, inside, 8).network(2) == Network(2, 2, inside, SLOW)
