"""Runs of values that share a scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcbench.codecs.buckets import Buckets
from gcbench.codecs.chunks import CHUNK_VALUES, chunks
from gcbench.codecs.quantise import NORMS

CPU = torch.device("cpu")


@settings(deadline=None)
@given(
    segments=st.lists(st.integers(1, 40), min_size=1, max_size=6), size=st.integers(1, 20), norm=st.sampled_from(["linf", "l2"])
)
def test_buckets_restart_at_every_tensor(segments: list[int], size: int, norm: str) -> None:
    x = torch.randn(3, sum(segments), generator=torch.Generator().manual_seed(0))
    buckets = Buckets(tuple(segments), size, CPU)
    expected = [part for tensor in x.split(segments, dim=1) for part in tensor.split(size, dim=1)]
    assert buckets.count == len(expected)
    scales = buckets.reduce(x, NORMS[norm])
    torch.testing.assert_close(scales, torch.stack([NORMS[norm](part) for part in expected], dim=1))
    spread = torch.cat([scales[:, i : i + 1].expand_as(part) for i, part in enumerate(expected)], dim=1)
    assert torch.equal(buckets.expand(scales, 0, x.shape[1]), spread)
    middle = x.shape[1] // 2
    assert torch.equal(buckets.expand(scales, middle, x.shape[1]), spread[:, middle:])


@pytest.mark.parametrize("n", [1, CHUNK_VALUES - 1, CHUNK_VALUES, CHUNK_VALUES + 1, 3 * CHUNK_VALUES])
def test_chunks_cover_every_value_once(n: int) -> None:
    covered = [i for start, stop in chunks(n, CPU) for i in (start, stop)]
    assert covered[0] == 0 and covered[-1] == n
    assert covered[1:-1:2] == covered[2:-1:2]
    assert all(0 < stop - start <= CHUNK_VALUES for start, stop in chunks(n, CPU))
