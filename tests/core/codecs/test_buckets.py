"""Buckets of values that share a scale, and rows of values that kernels process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import each
from torch import Tensor

from gcbench.core.codecs import buckets as module
from gcbench.core.codecs.buckets import Buckets, Groups, Rows
from gcbench.core.codecs.kernels import BLOCK_VALUES, block_slices
from gcbench.core.codecs.scales import NORMS
from gcbench.core.methods.bingrad import BinGradB, BinGradPB
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.even_levels import EvenLevels
from gcbench.core.methods.linear import Linear
from gcbench.core.methods.loco import NearestLevel
from gcbench.core.methods.onebit import OneBit
from gcbench.core.methods.orq import ORQ
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.methods.sign import ScaledSign

CPU = torch.device("cpu")

SEGMENTS = st.lists(st.integers(1, 60), min_size=1, max_size=6)
# With rows of 4: sizes that are not whole rows, one row, several, and one bucket per tensor.
SIZES = st.sampled_from([1, 3, 4, 8, 20, None])


@pytest.fixture(autouse=True, params=["in place", "copied"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how large tensors are read: in place, or copied as on a GPU.

    Rows have 4 values here, and tensors with 16 values in whole groups count as large.
    """
    monkeypatch.setattr(module, "ROW", 4)
    monkeypatch.setattr(module, "LARGE", 16)
    chosen: str = request.param
    monkeypatch.setattr(module, "_takes_in_place", lambda _: chosen == "in place")
    return chosen


def tensors_of(segments: list[int], workers: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(workers, n, generator=generator) for n in segments]


def flat(rows: Rows) -> Tensor:
    return torch.cat([*(matrix.flatten(1) for _, matrix in rows.matrices), rows.rest], dim=1)


def in_buckets(tensors: list[Tensor], size: int | None) -> list[Tensor]:
    return [part for tensor in tensors for part in tensor.split(size or tensor.shape[1], dim=1)]


def places(groups: Groups, row: int) -> tuple[Tensor, Tensor]:
    """Return every value's position in the concatenated tensors, and its bucket."""
    positions = groups.starts.flatten().unsqueeze(1) + torch.arange(row)
    bucket = groups.buckets.flatten().repeat_interleave(row)
    return torch.cat([positions.flatten(), groups.rest_positions]), torch.cat(
        [bucket, groups.rest_buckets]
    )


LAYOUTS = given(
    segments=SEGMENTS, size=SIZES, together=st.integers(1, 5), workers=st.integers(1, 3)
)


@settings(deadline=None)
@LAYOUTS
def test_every_value_is_taken_once_and_put_back(
    segments: list[int], size: int | None, together: int, workers: int
) -> None:
    tensors = tensors_of(segments, workers)
    buckets = Buckets(tuple(segments), size, together, CPU)
    taken = buckets.take(tensors)
    position, _ = places(buckets.groups, buckets.row)
    assert torch.equal(torch.cat(tensors, dim=1)[:, position], flat(taken))
    assert position.sort().values.tolist() == list(range(sum(segments)))
    empty = [torch.full_like(x, torch.nan) for x in tensors]
    room = buckets.make_room(empty)
    for (place, matrix), (other, target) in zip(taken.matrices, room.matrices, strict=True):
        assert place == other
        target.copy_(matrix)
    room.rest.copy_(taken.rest)
    buckets.put_back(room)
    assert all(map(torch.equal, empty, tensors))


@settings(deadline=None)
@given(segments=SEGMENTS, size=SIZES, norm=st.sampled_from(["linf", "l2"]))
def test_buckets_restart_at_every_tensor(segments: list[int], size: int | None, norm: str) -> None:
    tensors, buckets = tensors_of(segments, 3), Buckets(tuple(segments), size, 2, CPU)
    scales = buckets.reduce(buckets.take(tensors), lambda v, d=None: NORMS[norm](v))
    expected = [NORMS[norm](part) for part in in_buckets(tensors, size)]
    assert buckets.count == len(expected) == scales.shape[1]
    torch.testing.assert_close(scales.sort(1).values, torch.stack(expected, dim=1).sort(1).values)
    assert buckets.sizes.sum() == sum(segments)


@settings(deadline=None)
@LAYOUTS
def test_groups_name_the_bucket_of_every_value(
    segments: list[int], size: int | None, together: int, workers: int
) -> None:
    tensors = tensors_of(segments, workers)
    buckets = Buckets(tuple(segments), size, together, CPU)
    x, groups = buckets.take(tensors), buckets.groups
    assert groups.starts.shape == groups.buckets.shape
    position, bucket = places(groups, buckets.row)
    sums = torch.zeros(workers, buckets.count, dtype=torch.float64)
    sums.index_add_(1, bucket, flat(x).double())
    torch.testing.assert_close(sums, buckets.reduce(x, lambda v, d=None: v.double().sum(-1)))
    numbers = buckets.spread(torch.arange(buckets.count).unsqueeze(0))
    assert torch.equal(numbers[0, position], bucket)
    assert torch.equal(bucket.bincount(minlength=buckets.count), buckets.sizes)


FITS: list[Bucketed] = [
    *(ORQ(3), ORQ(9), Linear(4), EvenLevels(level_count=3), BinGradB(), BinGradPB()),
    *(OneBit(), ScaledSign(), ScaledSign(scale="rms"), QSGD(7, norm="l2"), NearestLevel(7)),
]


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@LAYOUTS
def test_a_gpu_fits_many_buckets_in_few_calls_as_each_alone(
    segments: list[int], size: int | None, together: int, workers: int, way: str
) -> None:
    tensors, buckets = tensors_of(segments, workers), Buckets(tuple(segments), size, together, CPU)
    tensors[0][0, 0], tensors[-1][-1, -1] = torch.inf, torch.nan
    taken, x = buckets.take(tensors), torch.cat(tensors, dim=1)
    number = buckets.spread(torch.arange(buckets.count).unsqueeze(0))[0]
    sizes = []
    buckets.reduce(taken, lambda v, d=None: sizes.append(v.shape[2]) or v[..., 0])  # type: ignore
    assert way == "in place" or len(sizes) <= 2 or (not size and len(sizes) == len({*sizes}))
    for method in FITS:
        fitted = buckets.reduce(taken, method.fit)
        each = [method.fit(x[:, number == k]) for k in range(buckets.count)]
        torch.testing.assert_close(fitted, torch.stack(each, dim=1), rtol=0, atol=0, equal_nan=True)


def test_large_tensors_are_taken_where_they_lie(way: str) -> None:
    tensors = tensors_of([3, 37, 18, 12], 2)
    rows = Buckets((3, 37, 18, 12), 8, 2, CPU).take(tensors)
    places = [place for place, _ in rows.matrices]
    if way == "copied":
        assert places == [slice(0, 8)] and rows.copied.shape == (2, 3 + 37 + 18 + 12)
        return
    assert places == [slice(0, 4), slice(4, 6), slice(6, 8)]
    lying = [matrix.data_ptr() for _, matrix in rows.matrices[:2]]
    assert lying == [tensors[1].data_ptr(), tensors[2].data_ptr()]
    assert rows.copied.shape == (2, 3 + 5 + 2 + 12)


@each("count", [0, 1, 31, 32, 33, 100])
def test_blocks_cover_everything_once(count: int) -> None:
    values = BLOCK_VALUES["eager"] // 32
    slices = list(block_slices(count, values, CPU))
    assert [i for part in slices for i in range(part.start, part.stop)] == list(range(count))
    assert all(part.stop - part.start <= 32 for part in slices)
