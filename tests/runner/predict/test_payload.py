"""Payloads that are counted without a network equal those of real steps."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from nightly import slow_but
from sentence import compose
from torch.utils._python_dispatch import TorchDispatchMode

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor, State, Step
from gcbench.runner.config.resolve import resolve
from gcbench.runner.launch.instantiate import make_compressor
from gcbench.runner.predict import payload as module
from gcbench.runner.predict.payload import LATE, Payload

SHAPES = {"conv": (64, 32, 3, 3), "matrix": (128, 160), "bias": (160,)}
SCATTERED = 5e-3  # tolerance: shards are padded to whole buckets and groups of eight


def method(*overrides: str) -> Compressor:
    return make_compressor(resolve(compose(*overrides)).compressor, quiet=True)


def sent(overrides: list[str], workers: int) -> dict[tuple[str, str], float]:
    """Return the bits that the first of the virtual workers sends per step, averaged over two."""
    comm = Comm(workers)
    generator = torch.Generator().manual_seed(0)
    grads = {k: torch.randn(workers, *s, generator=generator) for k, s in SHAPES.items()}
    offsets = {"conv": 0, "matrix": 18432, "bias": 38912}
    compressor, state = method(*overrides), State()
    for number in (LATE, LATE + 1):
        state = compressor.aggregate(grads, state, comm, Step(number, 1, comm.local, offsets)).state
    totals = comm.meter.totals_by_worker[0]
    return {(k.level, k.collective): t.sent_bits / 2 for k, t in totals.items()}


@pytest.mark.parametrize(
    ("overrides", "workers", "share"),
    [
        (["compressor=none"], 4, 0),
        (["compressor=powersgd", "rank=2", "min_size=0"], 4, 0),
        (["compressor=acpsgd", "min_size=0"], 4, 0),  # alternates between factors of two sizes
        (
            ["compressor=orq", "level_count=5", "exchange=sum"],
            4,
            0,
        ),  # codes of 1024 workers cannot be summed
        # nor those of 16
        (["compressor=linear", "level_count=9", "exchange=sum", "min_size=0"], 2, 0),
        (["compressor=top_k"], 4, 0),
        (["compressor=qsgd"], 4, 0),
        (["compressor=qsgd", "exchange=sum"], 4, 0),
        (["compressor=maxnorm"], 8, 0),
        (["compressor=qsgd", "exchange=scatter"], 4, SCATTERED),
        (["compressor=qsgd", "exchange=scatter_coded"], 32, SCATTERED),
        (["compressor=nvfp4", "exchange=ring"], 32, SCATTERED),
        (["compressor=bf16", "accumulate=fp32"], 32, SCATTERED),
        (["compressor=qsgd", "exchange=hierarchical", "workers_per_node=2"], 8, 1e-4),
    ],
)
def test_counts_are_those_of_the_meter(overrides: list[str], workers: int, share: float) -> None:
    nodes = 2 if "workers_per_node=2" in overrides else 1
    payload = Payload(method(*overrides), SHAPES, nodes)
    found = {(m.level, m.collective): m.bits for m in payload.at(workers)}
    assert found == pytest.approx(sent(overrides, workers), rel=share, abs=0)


def llama(layers: int, width: int, words: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a Llama's parameters."""
    inside = width * 11 // 4
    layer = {
        **dict.fromkeys(("q", "k", "v", "o"), (width, width)),
        "gate": (inside, width),
        "up": (inside, width),
        "down": (width, inside),
        "norm 1": (width,),
        "norm 2": (width,),
    }
    layers_of = {f"{i}.{k}": shape for i in range(layers) for k, shape in layer.items()}
    return {"embedding": (words, width), **layers_of, "norm": (width,), "head": (words, width)}


class LargestOnCpu(TorchDispatchMode):
    """Notes how many bytes the largest tensor with values takes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.device.type == "cpu":
            self.size = max(self.size, made.nbytes)
        return made


def test_a_billion_values_are_counted_by_their_shapes() -> None:
    shapes = llama(22, 2048, 32_000)
    sizes = [math.prod(shape) for shape in shapes.values()]
    large = [n for n in sizes if n >= 10_000]
    matrices = [shape for shape in shapes.values() if len(shape) == 2]
    assert sum(sizes) > 1.2e9
    expected = {
        "none": 32 * sum(sizes),
        "qsgd": sum(4 * n + 32 * (n // 512) for n in large) + 32 * (sum(sizes) - sum(large)),
        "powersgd": 32 * (2 * sum(map(sum, matrices)) + sum(sizes) - sum(large)),
        "scaled_sign": sum(n + 32 * -(-n // 2048) for n in sizes),
        "top_k": sum(64 * max(1, n // 64) for n in sizes),
    }
    compressors = {name: method(f"compressor={name}") for name in expected}
    start = time.process_time()
    with LargestOnCpu() as largest:
        found = {
            name: sum(m.bits for m in Payload(compressor, shapes).at(4))
            for name, compressor in compressors.items()
        }
    assert found == expected
    assert largest.size < 4 * sum(sizes) / 16
    assert time.process_time() - start < 15


@pytest.mark.parametrize("code", slow_but(["ans"], ["elias_dense", "elias_sparse", "ans"]))
def test_codes_of_values_are_those_of_parts_of_a_large_model(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {**llama(1, 160, 1600), "conv": (256, 96, 3, 3)}
    compressor = method("compressor=qsgd", f"code={code}", "bits=3", "align=true")
    whole = Payload(compressor, shapes).at(4)
    monkeypatch.setattr(module, "SAMPLED", 2**18)
    parts = Payload(compressor, shapes).at(4)
    assert [m._replace(bits=0) for m in parts] == [m._replace(bits=0) for m in whole]
    for a, b in zip(parts, whole, strict=True):
        assert a.bits == b.bits if b.collective != "ragged_gather" else a.bits != b.bits
        assert a.bits == pytest.approx(b.bits, rel=2e-2)


def test_a_tensor_is_cut_to_its_first_rows_or_to_a_part_of_one() -> None:
    assert module._cut((64, 32, 3, 3), 1000) == (4, 32, 3, 3)
    assert module._cut((2, 4000), 1000) == (1, 1000)
    assert module._cut((2, 4000), 10_000) == (2, 4000)
    assert module._cut((), 1000) == ()


def test_lanes_widen_with_the_workers_and_gathers_do_not() -> None:
    summed, gathered = (Payload(method(f"compressor={c}"), SHAPES) for c in ("maxnorm", "signum"))
    assert summed.at(100_000)[0].bits > 2 * summed.at(4)[0].bits
    assert gathered.at(100_000) == gathered.at(2)
    assert gathered.at(1) == []


def test_more_workers_than_a_sum_has_room_for_are_refused_by_their_number() -> None:
    payload = Payload(method("compressor=linear", "level_count=9", "exchange=sum"), SHAPES)
    assert payload.at(8)
    with pytest.raises(ValueError, match="counts of 9 levels by 32 workers take"):
        payload.at(32)


def test_one_node_has_nothing_between_nodes() -> None:
    by_node, gathered = (
        Payload(method("compressor=qsgd", f"exchange={e}"), SHAPES, 8)
        for e in ("hierarchical", "gather")
    )
    assert all(message.bits > 0 for message in by_node.at(16))
    typed = (
        "workers=4 workers_per_node=8: all workers would be one node, .*; type more workers, as in "
        "workers=16, smaller nodes"
    )
    with pytest.raises(ValueError, match=typed):
        by_node.at(4)
    assert gathered.at(4) == gathered.at(16)


def test_a_hundred_thousand_workers_in_a_second() -> None:
    from gcbench.runner.network import Link
    from gcbench.runner.predict.devices import read_device
    from gcbench.runner.predict.model import Cluster, Compute, predict
    from gcbench.runner.predict.subject import make_method

    overrides = [
        ["compressor=qsgd", "exchange=scatter_coded"],
        ["compressor=powersgd"],
        ["compressor=maxnorm"],
    ]
    made = [make_method("m", "qsgd", method(*w), SHAPES, read_device("v100")) for w in overrides]
    cluster = Cluster(Link(1e9, 5e-5), Link(1e12), 4)
    for m in made:
        m.messages(100_000)  # counts the payload, once
    start = time.process_time()
    found = [predict(m, 100_000, cluster, Compute(0.1, 0.06, 32)) for m in made]
    assert time.process_time() - start < 1
    assert all(p.step_seconds > 0.1 for p in found)


def test_a_method_that_takes_turns_sends_one_message_a_step() -> None:
    from gcbench.runner.predict.devices import read_device
    from gcbench.runner.predict.subject import make_method

    compressor = method("compressor=acpsgd", "min_size=0")
    made = make_method("m", "qsgd", compressor, {"matrix": (128, 160)}, read_device("v100"))
    (message,) = made.messages(4)
    assert message.number == 1 and message.bits == 32 * 4 * (128 + 160) / 2
    assert made.dense_bytes == 4 * 128 * 160
