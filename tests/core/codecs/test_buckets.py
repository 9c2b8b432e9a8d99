"""Buckets of values that share a scale, read in parts as on a CPU and at once as on a GPU."""

from __future__ import annotations

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


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "block_slices", lambda n, size, device, _=0: block_slices(n, size, device, 50)
    )


def tensors_of(segments: list[int], workers: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(workers, n, generator=generator) for n in segments]


def in_buckets(tensors: list[Tensor], size: int | None) -> list[Tensor]:
    return [part for tensor in tensors for part in tensor.split(size or tensor.shape[1], dim=1)]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@LAYOUTS
def test_every_value_is_found_in_its_bucket(
    segments: list[int], size: int | None, workers: int
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


@settings(deadline=None)
@given(segments=SEGMENTS, size=SIZES, norm=st.sampled_from(["linf", "l2"]))
def test_buckets_restart_at_every_tensor(segments: list[int], size: int | None, norm: str) -> None:
    tensors, buckets = tensors_of(segments, 3), Buckets(tuple(segments), size, CPU)
    scales = buckets.reduce(tensors, NORMS[norm])
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
def test_many_buckets_are_fitted_at_once_as_each_alone(
    segments: list[int], size: int | None, workers: int
) -> None:
    tensors, buckets = tensors_of(segments, workers), Buckets(tuple(segments), size, CPU)
    tensors[0][0, 0], tensors[-1][-1, -1] = torch.inf, torch.nan
    for method in FITS:
        fitted = buckets.reduce(tensors, method.fit)
        each = [method.fit(part) for part in in_buckets(tensors, size)]
        torch.testing.assert_close(fitted, torch.stack(each, dim=1), rtol=0, atol=0, equal_nan=True)


@each("count", [0, 1, 31, 32, 33, 100])
def test_blocks_cover_everything_once(count: int) -> None:
    values = BLOCK_VALUES["eager"] // 32
    slices = list(block_slices(count, values, CPU))
    assert [i for part in slices for i in range(part.start, part.stop)] == list(range(count))
    assert all(part.stop - part.start <= 32 for part in slices)
