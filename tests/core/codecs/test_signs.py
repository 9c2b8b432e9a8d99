"""Signs, and the means of both sides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
import torch
from backends import use
from nightly import each
from torch import Tensor

from gcbench.core.codec import Message
from gcbench.core.compressor import Step
from gcbench.core.methods.onebit import OneBit
from gcbench.core.methods.quantizers import Signs
from gcbench.core.methods.sign import ScaledSign

SIZES = {
    "whole groups": (64 * 512,),
    "rows and tails": (40 * 130, 7, 3 * 999, 64 * 40),
    "few": (1, 5, 31),
}
BUCKETS = {
    "one row": {"bucket_size": 512},
    "rows": {"bucket_size": 2048},
    "odd": {"bucket_size": 77},
    "tensors": {"per_layer": True},
}
METHODS = {
    f"{kind.__name__}, {name}": kind(**words)
    for kind in (ScaledSign, OneBit)
    for name, words in BUCKETS.items()
}


@pytest.fixture(autouse=True, params=["native", "eager"])
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    yield from use(request.param)


def values(sizes: tuple[int, ...], workers: int = 2) -> Tensor:
    x = torch.randn(workers, sum(sizes), generator=torch.Generator().manual_seed(1))
    x[:, ::7] = 0
    x[:, ::11] = -0.0
    return x


def encode(method: Signs, x: Tensor, sizes: tuple[int, ...]) -> Message:
    names = [str(i) for i in range(len(sizes))]
    step = Step(0, 1, range(len(x)), dict(zip(names, accumulate(sizes, initial=0), strict=False)))
    noise = step.noise("codec", dict(zip(names, sizes, strict=True)), x.device)
    return method.encode(x, sizes, noise)


@each("name", METHODS)
def test_a_worker_alone_has_the_same_bits_as_among_others(name: str) -> None:
    sizes = SIZES["rows and tails"]
    together = encode(METHODS[name], values(sizes), sizes)
    alone = encode(METHODS[name], values(sizes)[1:], sizes)
    assert all(torch.equal(a[1:], b) for a, b in zip(together, alone, strict=True))


def test_means_are_those_of_each_side() -> None:
    """Means by the definition are computed in float64; a side without values has a mean of 0."""
    x = torch.cat([values((2048,), 1), -values((2048,), 1).abs() - 1], dim=1)
    means = encode(OneBit(), x, (4096,))[1]
    first, second = x[0].double().split(2048)
    torch.testing.assert_close(
        means[0, 0].double(), torch.stack([first[first < 0].mean(), first[first >= 0].mean()])
    )
    assert means[0, 1, 1] == 0
    torch.testing.assert_close(means[0, 1, 0].double(), second.mean())


@each("where", [3, 16384 + 3])
def test_what_is_not_finite_is_not_hidden(where: int) -> None:
    """The value is in a group of rows, or after the last group."""
    x = values((16384 + 2048,), 1)
    x[0, where] = torch.nan
    means = encode(ScaledSign(), x, (16384 + 2048,))[1]
    assert means.isnan().sum() == 1
