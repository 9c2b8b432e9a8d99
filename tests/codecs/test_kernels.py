"""Compiled and eager kernels have the same results, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo
from backends import use
from nightly import slow_but

from gcbench.codecs import buckets, kernels
from gcbench.codecs.kernels import use_backend
from gcbench.comm import Comm
from gcbench.compressors import Aggregated, State, Step, build
from gcbench.compressors.bingrad import BinGradB
from gcbench.compressors.bucketed import Bucketed
from gcbench.compressors.codec import Codec
from gcbench.compressors.onebit import OneBit
from gcbench.compressors.orq import ORQ
from gcbench.compressors.qsgd import QSGD
from gcbench.compressors.sign import ScaledSign

# Together these have full rows, short buckets, tails, and fewer rows than a group.
SHAPES = {
    "a": (40, 130),
    "b": (7,),
    "c": (3, 999),
    "d": (64 * 40,),
}
METHODS = {"three bits": QSGD(3, bucket_size=64), "three levels": ORQ(3, bucket_size=64)}


@pytest.fixture
def compiled() -> Iterator[None]:
    yield from use("compiled")


def step(method: Bucketed, number: int) -> Aggregated:
    generator = torch.Generator().manual_seed(number)
    grads = {k: torch.randn(2, *shape, generator=generator) for k, shape in SHAPES.items()}
    offsets = {"a": 0, "b": 5200, "c": 5207, "d": 8204}
    return build(method).aggregate(grads, State(), Comm(2), Step(number, 1, range(2), offsets))


@pytest.mark.parametrize("name", slow_but(["three bits"], [*METHODS]))
def test_compiled_and_eager_are_equal_to_the_bit(name: str, compiled: None) -> None:
    method = METHODS[name]
    outputs = [step(method, number) for number in range(2)]
    sent = [out.sent() for out in outputs]
    use_backend("eager")
    for number, (out, sent_values) in enumerate(zip(outputs, sent, strict=True)):
        expected = step(method, number)
        for k in SHAPES:
            assert torch.equal(out.update[k], expected.update[k])
            assert torch.equal(sent_values[k], expected.sent()[k])


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Code small tensors in place, too, as if they were large."""
    monkeypatch.setattr(buckets, "LARGE", 1)
    buckets.buckets_of.cache_clear()
    yield
    buckets.buckets_of.cache_clear()


BUCKETED = {
    **METHODS,
    "a bucket a tensor": ScaledSign(per_layer=True),
    "signs with two means": OneBit(bucket_size=64),
    "two levels": BinGradB(bucket_size=64),
}


@pytest.mark.parametrize("name", BUCKETED)
def test_values_are_coded_alike_where_they_lie_and_copied(
    name: str, request: pytest.FixtureRequest
) -> None:
    def step_and_sent() -> list[torch.Tensor]:
        out = step(BUCKETED[name], 0)
        return [*out.update.values(), *out.sent().values()]

    copied = step_and_sent()
    request.getfixturevalue("in_place")
    torch.testing.assert_close(step_and_sent(), copied, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize(
    ("backend", "sizes"),
    [
        ("eager", [(1, 1), (3, 2), (9, 1)]),
        pytest.param("compiled", [(9, 1)], marks=pytest.mark.slow),
    ],
    indirect=["backend"],
)
def test_means_of_messages_are_those_of_one_after_the_other(
    backend: None, sizes: list[tuple[int, int]]
) -> None:
    """There are fewer and more workers than one kernel call takes, with one or several rows."""
    segments = tuple(torch.Size(shape).numel() for shape in SHAPES.values())
    codec = QSGD(3, bucket_size=64)
    for workers, rows in sizes:
        x = torch.randn(workers * rows, sum(segments), generator=torch.Generator().manual_seed(0))
        offsets = {"x": 0}
        first = Step(0, 1, range(workers * rows), offsets)
        noise = first.noise("codec", {"x": sum(segments)}, x.device)
        messages = [m.unflatten(0, (workers, rows)) for m in codec.encode(x, segments, noise)]
        mean = codec.decode_mean(messages, segments)
        assert torch.equal(mean, Codec.decode_mean(codec, messages, segments))
        assert mean.shape == (rows, sum(segments)) and not (mean == 0).all()


def test_blocks_of_a_long_row_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = step(ScaledSign(bucket_size=64), 0).update
    monkeypatch.setitem(kernels.BLOCK_VALUES, "eager", 4096)
    parts = step(ScaledSign(bucket_size=64), 0).update
    assert all(torch.equal(whole[k], parts[k]) for k in SHAPES)


def test_a_kernel_that_cannot_be_one_loop_is_an_error(compiled: None) -> None:
    """Kernels never fall back to eager code silently."""

    @kernels.kernel
    def breaks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if float(x.sum()) > 0 else x

    with pytest.raises(Exception, match="(?i)graph break|data-dependent|unsupported"):
        breaks(torch.ones(4))


def test_functions_of_the_user_are_compiled_as_before(compiled: None) -> None:
    names = [*kernels.DYNAMO]
    before = [getattr(dynamo, name) for name in names]
    with kernels.keep_dynamo():
        step(METHODS["three bits"], 0)
        assert [getattr(dynamo, name) for name in names] == [*kernels.DYNAMO.values()]
    assert [getattr(dynamo, name) for name in names] == before


def test_a_thread_compiles_as_many_shapes_as_the_main_one(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamo keeps its limits per thread, and `trainer.overlap` compresses in a separate thread."""
    compile_ = torch.compile

    def trace_only(function: Any, fullgraph: bool, options: Any) -> Any:
        return compile_(function, fullgraph=fullgraph, backend="eager")

    monkeypatch.setattr(torch, "compile", trace_only)

    @kernels.kernel
    def double(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(2 * x)

    def double_all() -> list[float]:
        shapes = [(1,) * dimensions for dimensions in range(1, 12)]
        outs = [torch.zeros(shape) for shape in shapes]
        for out in outs:
            double(torch.ones(out.shape), out)
        return [float(out) for out in outs]

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(double_all).result() == [2.0] * 11
