"""Runs of values that share a scale, and rows of values that kernels walk."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gcbench.codecs import buckets as module
from gcbench.codecs.buckets import Buckets, Groups
from gcbench.codecs.kernels import BLOCK_VALUES, block_slices
from gcbench.codecs.quantize import NORMS

CPU = torch.device("cpu")

SEGMENTS = st.lists(st.integers(1, 60), min_size=1, max_size=6)
# With rows of 4 these are no multiple, one, several, and a bucket a tensor.
SIZES = st.sampled_from([1, 3, 4, 8, 20, None])


@pytest.fixture(autouse=True)
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROW", 4)


def rows(segments: list[int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, n, generator=generator) for n in segments]


def in_buckets(tensors: list[Tensor], size: int | None) -> list[Tensor]:
    return [part for tensor in tensors for part in tensor.split(size or tensor.shape[1], dim=1)]


@settings(deadline=None)
@given(segments=SEGMENTS, size=SIZES)
def test_what_is_laid_out_is_laid_back(segments: list[int], size: int | None) -> None:
    tensors, buckets = rows(segments), Buckets(tuple(segments), size, CPU)
    assert torch.equal(buckets.restore_order(buckets.reorder(tensors)), torch.cat(tensors, dim=1))


@settings(deadline=None)
@given(segments=SEGMENTS, size=SIZES, norm=st.sampled_from(["linf", "l2"]))
def test_buckets_restart_at_every_tensor(segments: list[int], size: int | None, norm: str) -> None:
    tensors, buckets = rows(segments), Buckets(tuple(segments), size, CPU)
    scales = buckets.reduce(buckets.reorder(tensors), NORMS[norm])
    expected = [NORMS[norm](part) for part in in_buckets(tensors, size)]
    assert buckets.count == len(expected) == scales.shape[1]
    torch.testing.assert_close(scales.sort(1).values, torch.stack(expected, dim=1).sort(1).values)


@settings(deadline=None)
@given(segments=SEGMENTS, size=SIZES, count=st.integers(1, 5))
def test_groups_name_the_bucket_and_the_place_of_every_value(
    segments: list[int], size: int | None, count: int
) -> None:
    tensors, buckets = rows(segments), Buckets(tuple(segments), size, CPU)
    x, groups = buckets.reorder(tensors), buckets.groups(count)
    assert groups.starts.shape == groups.buckets.shape == (buckets.rows // count, count)
    bucket, position = spread(groups, buckets.row)
    assert torch.equal(torch.cat(tensors, dim=1)[:, position], x)
    sums = torch.zeros(3, buckets.count, dtype=torch.float64).index_add_(1, bucket, x.double())
    torch.testing.assert_close(sums, buckets.reduce(x.double(), lambda v: v.sum(-1)))
    assert torch.equal(
        buckets.reduce(x, lambda v: v.abs().amax(-1))[:, bucket] >= x.abs(),
        torch.ones_like(x, dtype=torch.bool),
    )


def spread(groups: Groups, row: int) -> tuple[Tensor, Tensor]:
    """Return the bucket and the place of every value, in this order."""
    positions = groups.starts.flatten().unsqueeze(1) + torch.arange(row)
    bucket = groups.buckets.flatten().repeat_interleave(row)
    return torch.cat([bucket, groups.rest_buckets]), torch.cat(
        [positions.flatten(), groups.rest_positions]
    )


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100])
def test_blocks_cover_everything_once(count: int) -> None:
    values = BLOCK_VALUES["eager"] // 32
    slices = list(block_slices(count, values, CPU))
    assert [i for part in slices for i in range(part.start, part.stop)] == list(range(count))
    assert all(part.stop - part.start <= 32 for part in slices)
