"""Dense inside a node, compressed between nodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gloo_pool import pool
from layout_cases import traces_in_one_process, traces_over_gloo
from method_cases import SHAPES, aggregate, build_method, flat, gradients
from nightly import each
from torch import Tensor

from gcbench.core.codec import Codec
from gcbench.core.codecs.noise import Noise
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.meter import Kind
from gcbench.core.compressor import Compressor, Grads, State
from gcbench.core.exchange.gather import GatherExchange
from gcbench.core.exchange.hierarchical import Hierarchical
from gcbench.core.methods.orq import ORQ
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.methods.sign import ScaledSign
from gcbench.core.wrappers.build import build

CODECS: dict[str, Codec] = {
    "qsgd": QSGD(3, bucket_size=16),
    "l2": QSGD(7, "l2", bucket_size=16),
    "orq": ORQ(level_count=5, bucket_size=16),
    "sign": ScaledSign(bucket_size=16),
}
each_codec = pytest.mark.parametrize("codec", CODECS)
VALUES = sum(torch.Size(shape).numel() for shape in SHAPES.values())


def node_means(grads: Grads, size: int) -> Grads:
    return {k: g.unflatten(0, (-1, size)).mean(1) for k, g in grads.items()}


@each_codec
def test_a_node_counts_as_one_worker_with_its_mean_gradient(codec: str) -> None:
    grads = gradients(range(8), 0)
    update = aggregate(Hierarchical(CODECS[codec], 4), grads).update
    expected = aggregate(GatherExchange(CODECS[codec]), node_means(grads, 4)).update
    torch.testing.assert_close(flat(update), flat(expected), rtol=1e-5, atol=1e-6)


@each_codec
def test_nodes_of_one_worker_gather(codec: str) -> None:
    grads = gradients(range(4), 0)
    update = aggregate(Hierarchical(CODECS[codec], 1), grads).update
    expected = aggregate(GatherExchange(CODECS[codec]), grads).update
    assert all(torch.equal(update[k], expected[k]) for k in grads)


def test_it_is_unbiased_where_the_codec_is() -> None:
    compressor, grads, steps = Hierarchical(QSGD(3, bucket_size=16), 2), gradients(range(4), 0), 400
    assert compressor.properties.unbiased
    assert not Hierarchical(ScaledSign(bucket_size=16), 2).properties.unbiased
    updates = torch.cat([flat(aggregate(compressor, grads, number=i).update) for i in range(steps)])
    error = (updates.mean(0) - flat(grads).mean(0)).norm()
    assert error < 2 * (updates.var(0).sum() / steps).sqrt()


# Error feedback


@each_codec
def test_what_was_sent_is_the_gradient_less_the_error_of_the_nodes_code(codec: str) -> None:
    """Its mean is the update, and the workers of a node share the error of the node's code."""
    grads = gradients(range(4), 0)
    out = aggregate(Hierarchical(CODECS[codec], 2), grads)
    sent = flat(out.sent())
    torch.testing.assert_close(sent.mean(0, keepdim=True), flat(out.update), rtol=1e-5, atol=1e-6)
    missing = (flat(grads) - sent).view(2, 2, -1)
    torch.testing.assert_close(missing[:, 0], missing[:, 1], rtol=1e-4, atol=1e-7)
    assert missing.abs().max() > 1e-3


@each(("alpha", "beta"), [(1.0, 1.0), (0.2, 0.9)])
def test_a_node_remembers_as_one_worker_would(alpha: float, beta: float) -> None:
    compressor = build(
        ScaledSign(bucket_size=16),
        exchange="hierarchical",
        workers_per_node=2,
        error_feedback=True,
        **weights(alpha, beta),
    )
    single = build(ScaledSign(bucket_size=16), error_feedback=True, **weights(alpha, beta))
    state, state_of_nodes = State(), State()
    for number in range(10):
        grads = gradients(range(4), number)
        before = flat(state.per_worker) if state.per_worker else 0
        out = aggregate(compressor, grads, number=number, state=state)
        expected = aggregate(single, node_means(grads, 2), number=number, state=state_of_nodes)
        state, state_of_nodes = out.state, expected.state
        torch.testing.assert_close(flat(out.update), flat(expected.update), rtol=1e-4, atol=1e-5)
        residual = flat(state.per_worker)
        torch.testing.assert_close(
            flat(out.sent()) + residual, flat(grads) + beta * before, rtol=1e-5, atol=1e-6
        )
        of_nodes = flat(state_of_nodes.per_worker).repeat_interleave(2, dim=0)
        torch.testing.assert_close(residual, of_nodes, rtol=1e-4, atol=1e-5)


def weights(alpha: float, beta: float) -> dict[str, Any]:
    return {"alpha": alpha, "beta": beta}


# What travels


def test_bits_of_each_level() -> None:
    """Each worker sends a fourth of its node's code between nodes.

    The code takes 4 bits per value, in groups of eight, and 32 per bucket. Inside a node, workers
    exchange the gradient in fp32, and what came in from other nodes.
    """
    comm, grads = Comm(12), gradients(range(12), 0)
    aggregate(Hierarchical(QSGD(7, bucket_size=16), 4), grads, comm=comm)
    code_bytes = 4 * -(-VALUES // 8) + 4 * sum(
        -(-torch.Size(s).numel() // 16) for s in SHAPES.values()
    )
    part = 8 * -(-code_bytes // 4)
    for totals in comm.meter.totals_by_worker:
        seen = {kind: (total.sent_bits, total.received_bits) for kind, total in totals.items()}
        assert seen == {
            Kind("inside", "all_reduce", 4): (32 * VALUES, 32 * VALUES),
            Kind("between", "all_gather", 3): (part, 2 * part),
            Kind("inside", "all_gather", 4): (2 * part, 3 * 2 * part),
        }


def test_a_node_sends_its_code_once_to_each_other_node() -> None:
    """This holds for nodes of any size; in a flat gather, every worker would send a code."""
    codec: Codec = QSGD(7, bucket_size=512)
    grads = {"w": torch.randn(8, 40_000, generator=torch.Generator().manual_seed(0))}
    code = codec.encode(
        grads["w"][:1], (40_000,), Noise(torch.zeros(1, 2, dtype=torch.int32), ((0, 40_000),))
    )
    code_bits = sum(8 * m.element_size() * m.numel() for m in code)
    for size in (2, 4):
        comm = Comm(8)
        aggregate(Hierarchical(codec, size), grads, comm=comm)
        between = [
            t.wire_bits(kind)
            for totals in comm.meter.totals_by_worker[:size]
            for kind, t in totals.items()
            if kind.level == "between"
        ]
        assert code_bits <= sum(between) / (8 // size - 1) < 1.001 * code_bits


# Real processes


@each(("processes", "workers"), [(4, 4), (2, 4), (4, 8), (2, 8)])
def test_virtual_workers_are_those_of_processes_that_share_nodes(
    processes: int, workers: int
) -> None:
    """A node is two processes, one process, or half of one."""
    compressors: dict[str, Compressor] = {
        f"{codec} {size}": build(
            CODECS[codec],
            exchange="hierarchical",
            workers_per_node=size,
            error_feedback=True,
            **weights(0.2, 0.9),
        )
        for codec in ("qsgd", "orq")
        for size in (2, 4)
        if size < workers
    }
    seen = pool(processes).run(traces_over_gloo, compressors, workers)
    for name, virtual in traces_in_one_process(compressors, workers).items():
        for process in seen:
            for number, expected in enumerate(virtual.updates):
                real, first = process[name].updates[number], seen[0][name].updates[number]
                assert all(torch.equal(real[k], first[k]) for k in real), "replicas"
                torch.testing.assert_close(flat(real), flat(expected), rtol=1e-4, atol=1e-5)
        assert [b for process in seen for b in process[name].sent_bits] == virtual.sent_bits
        assert [b for process in seen for b in process[name].received_bits] == virtual.received_bits


# Settings


def test_the_command_line_reaches_it() -> None:
    compressor: Any = build_method("ecqsgd", exchange="hierarchical", workers_per_node=2)
    assert compressor.inner.inner == Hierarchical(QSGD(7, "l2", bucket_size=512), 2)


def test_virtual_workers_have_no_hosts() -> None:
    grads: dict[str, Tensor] = gradients(range(4), 0)
    with pytest.raises(ValueError, match="as for virtual workers; type workers_per_node=2"):
        aggregate(Hierarchical(QSGD(7, bucket_size=16)), grads)
