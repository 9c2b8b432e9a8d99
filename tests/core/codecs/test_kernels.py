"""Compiled and eager kernels have the same results, to the bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from backends import needs_compiler, use
from nightly import slow_but

from gcbench.core.codec import Codec
from gcbench.core.codecs import kernels
from gcbench.core.codecs.kernels import backend_in_use, use_backend
from gcbench.core.codecs.tracing import compile_call
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, State, Step
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.orq import ORQ
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.methods.sign import ScaledSign
from gcbench.core.wrappers.build import build

# Together these have full buckets and short ones.
SHAPES = {"a": (40, 130), "b": (7,), "c": (3, 999), "d": (64 * 40,)}
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

    with pytest.raises(Exception, match="(?i)data.dependent|_local_scalar_dense"):
        breaks(torch.ones(4))


def test_a_call_is_compiled_once_for_shapes_types_and_constants(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = []
    monkeypatch.setattr(kernels, "compile_call", lambda *a: graphs.append(a) or compile_call(*a))

    @kernels.kernel
    def shift(x: torch.Tensor, by: float, out: torch.Tensor) -> torch.Tensor:
        out.copy_(x + by)
        return x * 2

    x, out = torch.arange(6.0), torch.zeros(6)
    calls = [(x, 1), (x, 1), (x, 1.0), (x, True), (x.view(2, 3), 1), (x.view(2, 3).T, 1), (x, 1)]
    for values, by in calls:
        room = out.view(values.shape) if values.is_contiguous() else out.view(2, 3).T
        assert torch.equal(shift(values, by, room), values * 2)
        assert torch.equal(room, values + 1)
    assert len(graphs) == 5, "five of the calls differ"


def test_codecs_are_eager_after_one_that_does_not_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    needs_compiler()

    def fails(*_: object) -> None:
        raise RuntimeError("no ptxas")

    monkeypatch.setattr(kernels, "compile_call", fails)
    use_backend("compiled", may_fall_back=True)
    method = QSGD(5, bucket_size=64)  # none of whose kernels another test has compiled
    assert step(method, 0).update.keys() == SHAPES.keys()
    assert backend_in_use() == "eager" and "no ptxas" in caplog.text
