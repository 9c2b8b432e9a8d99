"""Buckets of values that share a scale, read in parts as on a CPU and at once as on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import each
from torch import Tensor

from gcbench.core.codecs import buckets as module
from gcbench.core.codecs.buckets import Buckets
from gcbench.core.codecs.kernels import BLOCK_VALUES, block_slices
from gcbench.core.codecs.scales import NORMS
from gcbench.core.compressor import Step
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.loco import NearestLevel
from gcbench.core.methods.onebit import OneBit
from gcbench.core.methods.orq import ORQ, BinGradB, BinGradPB, EvenLevels, Linear
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.methods.sign import ScaledSign

CPU = torch.device("cpu")

SEGMENTS = st.lists(st.integers(1, 60), min_size=1, max_size=6)
SIZES = st.sampled_from([1, 3, 4, 8, 20, None])
LAYOUTS = given(segments=SEGMENTS, size=SIZES, workers=st.integers(1, 3))


@pytest.fixture(autouse=True, params=["in parts", "at once"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how values are read."""
    chosen: str = request.param
    monkeypatch.setattr(module, "_takes_parts", lambda _: chosen == "in parts")
    monkeypatch.setattr(module, "LARGE", 40)
    monkeypatch.setattr(
        module, "block_slices", lambda n, size, device, _=0: block_slices(n, size, device, 50)
    )
    module.buckets_of.cache_clear()
    return chosen


def tensors_of(segments: list[int], workers: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(workers, n, generator=generator) for n in segments]


def in_buckets(tensors: list[Tensor], size: int | None) -> list[Tensor]:
    return [part for tensor in tensors for part in tensor.split(size or tensor.shape[1], dim=1)]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@LAYOUTS
def test_every_value_is_found_in_its_bucket(
    segments: list[int], size: int | None, workers: int, way: str
) -> None:
    tensors, buckets = tensors_of(segments, workers), Buckets(tuple(segments), size, CPU)
    numbers, n = [], 0
    for part, of_part in buckets.parts(workers):
        assert part.start == n and len(of_part) == part.stop - n
        numbers.append(of_part)
        n = part.stop
    assert n == sum(segments)
    assert torch.equal(buckets.take(tensors), torch.cat(tensors, dim=1))
    expected = [k for k, part in enumerate(in_buckets(tensors, size)) for _ in part[0]]
    assert torch.cat(numbers).tolist() == expected
    assert buckets.spread(torch.arange(buckets.count).unsqueeze(0))[0].tolist() == expected
    if size:
        assert all(map(torch.equal, buckets.cut(buckets.whole(tensors)), tensors))


@settings(deadline=None)
@given(segments=SEGMENTS, size=SIZES, norm=st.sampled_from(["linf", "l2"]))
def test_buckets_restart_at_every_tensor(segments: list[int], size: int | None, norm: str) -> None:
    tensors, buckets = tensors_of(segments, 3), Buckets(tuple(segments), size, CPU)
    scales = buckets.reduce(tensors, lambda v, d=None: NORMS[norm](v))
    expected = [NORMS[norm](part) for part in in_buckets(tensors, size)]
    assert buckets.count == len(expected)
    torch.testing.assert_close(scales, torch.stack(expected, dim=1))
    assert buckets.sizes.sum() == sum(segments)


FITS: list[Bucketed] = [
    *(ORQ(3), ORQ(9), Linear(4), EvenLevels(level_count=3), BinGradB(), BinGradPB()),
    *(OneBit(), ScaledSign(), ScaledSign(scale="rms"), QSGD(7, norm="l2"), NearestLevel(7)),
]


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@LAYOUTS
def test_many_buckets_are_fitted_in_few_calls_as_each_alone(
    segments: list[int], size: int | None, workers: int, way: str
) -> None:
    tensors, buckets = tensors_of(segments, workers), Buckets(tuple(segments), size, CPU)
    tensors[0][0, 0], tensors[-1][-1, -1] = torch.inf, torch.nan
    sizes: list[int] = []
    buckets.reduce(tensors, lambda v, d=None: sizes.append(v.shape[2]) or v[..., 0])  # type: ignore
    few = [n for n in sizes if n < 40]
    assert way == "in parts" or len(sizes) == 1 or (not size and len(few) == len({*few}))
    for method in FITS:
        fitted = buckets.reduce(tensors, method.fit)
        each = [method.fit(part) for part in in_buckets(tensors, size)]
        torch.testing.assert_close(fitted, torch.stack(each, dim=1), rtol=0, atol=0, equal_nan=True)


def test_messages_and_values_are_the_same_in_either_way() -> None:
    """Of codes that fill bytes and of those that do not, one by one and in words."""
    segments = [300, 1, 5, 130, 64, 3]
    tensors = tensors_of(segments, 2)
    names = [*map(str, range(len(segments)))]
    starts = dict(zip(names, [5000, 0, 4000, 17, 900, 2000], strict=True))
    noise = Step(3, 1, range(2), starts).noise(
        "codec", dict(zip(names, segments, strict=True)), CPU
    )
    for method in (*FITS, QSGD(127), QSGD(3), EvenLevels(level_count=17)):
        for knobs in ({"bucket_size": 64}, {"per_layer": True}):
            found = []
            for in_parts in (True, False):
                codec = replace(method, **knobs)
                buckets = codec.buckets(tuple(segments), CPU)
                buckets.in_parts = in_parts
                message = codec.encode_each(tensors, tuple(segments), noise)
                added, left = torch.ones(2, sum(segments)), torch.cat(tensors, dim=1)
                codec.decode_add(message, tuple(segments), added)
                codec.subtract_sent(left, message, tuple(segments))
                many = [torch.stack([part, part.flip(0)] * 9) for part in message]
                codes = codec.codes_by(
                    left,
                    tuple(segments),
                    buckets.reduce(left.split(segments, 1), codec.fit),
                    noise,
                )
                mean = codec.decode_mean(many, tuple(segments))
                found.append([*message, added, left, codes, mean])
            assert all(map(torch.equal, *found)), codec


@each("count", [0, 1, 31, 32, 33, 100])
def test_blocks_cover_everything_once(count: int) -> None:
    values = BLOCK_VALUES["eager"] // 32
    slices = list(block_slices(count, values, CPU))
    assert [i for part in slices for i in range(part.start, part.stop)] == list(range(count))
    assert all(part.stop - part.start <= 32 for part in slices)
