"""Levels against brute force, and random rounding to tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import each
from torch import Tensor

from gcbench.core.codecs.levels import (
    clamp_level,
    level_values,
    orq_levels,
    quantile_levels,
    random_codes,
    sort,
    two_means,
)
from gcbench.core.codecs.noise import Noise, keys

CPU = torch.device("cpu")


def draw(kind: str, buckets: int, d: int) -> Tensor:
    generator = torch.Generator().manual_seed(d)
    normal = torch.randn(buckets, d, generator=generator)
    uniform = torch.rand(buckets, d, generator=generator)
    return {
        "normal": normal,
        "heavy tails": normal**5,
        "one sided": uniform + 3,
        "ties": (normal * 2).round(),
        "two values": (normal > 0.5).float(),
        "huge": normal * 1e37,
    }[kind]


KINDS = ["normal", "heavy tails", "one sided", "ties", "two values", "huge"]


def error(v: Tensor, levels: Tensor) -> Tensor:
    """Return E|v - Q(v)|^2 of `[n, d]` buckets rounded to `[n, s]` levels, by the definition."""
    v, levels = v.double(), levels.double()
    low, high = levels[:, None, :-1], levels[:, None, 1:]
    inside = (v.unsqueeze(-1) - low).clamp_min(0) * (high - v.unsqueeze(-1)).clamp_min(0)
    return inside.sum((1, 2))


@each("kind", KINDS)
@each("d", [1, 2, 3, 4, 7, 16, 33, 63])
def test_the_middle_level_is_the_best_of_all_values(kind: str, d: int) -> None:
    """Theorem 1 holds for all 14,400 buckets; no level between two values is better."""
    v = draw(kind, 300, d)
    levels = orq_levels(v, 3)
    lowest, highest = v.amin(1), v.amax(1)
    assert torch.equal(levels[:, 0], lowest) and torch.equal(levels[:, 2], highest)
    orq_error = error(v, levels)
    between = (
        torch.rand(300, 8, generator=torch.Generator().manual_seed(0)) * (highest - lowest)[:, None]
        + lowest[:, None]
    )
    for candidate in torch.cat([v, between], dim=1).unbind(1):
        best = error(v, torch.stack([lowest, candidate.clamp(lowest, highest), highest], dim=1))
        assert (orq_error <= best * (1 + 1e-9)).all()


def recursive(w: list[float], left: int, right: int, halvings: int) -> list[float]:
    """Return the levels between w[left] and w[right] by algorithm 1 with K - 1, line by line."""
    if halvings == 0:
        return []
    m, width = right - left + 1, w[right] - w[left]
    c = sum(x - w[left] for x in w[left : right + 1]) / width if width > 0 else 0
    middle = left + m - 1 - int(c)
    below = recursive(w, left, middle, halvings - 1)
    above = recursive(w, middle, right, halvings - 1)
    return [*below, w[middle], *above]


@each("kind", KINDS)
@each("halvings", [1, 2, 3, 4, 7])
def test_all_buckets_at_once_find_what_the_recursion_finds(kind: str, halvings: int) -> None:
    """A few levels may differ: if a sum c is whole, rounding picks either of two equal choices."""
    v = draw(kind, 60, 50)
    levels = orq_levels(v, 2**halvings + 1)
    expected = torch.tensor(
        [[min(w), *recursive(w, 0, 49, halvings), max(w)] for w in v.sort().values.tolist()]
    )
    assert (levels == expected).float().mean() > 0.95
    torch.testing.assert_close(error(v, levels), error(v, expected), rtol=0.05, atol=0)
    assert (levels.diff(dim=1) >= 0).all()
    assert (levels.unsqueeze(2) == v.unsqueeze(1)).any(2).all(), "levels are values of the bucket"


@each("count", [3, 5, 9])
def test_the_greedy_levels_are_close_to_the_joint_optimum(count: int) -> None:
    """Iterating equation 12 gains nothing with 3 levels, at most 3 % with more (claim orq-03)."""
    v = draw("normal", 20, 500)
    greedy = orq_levels(v, count)
    joint = greedy.clone()
    w = v.sort(dim=1).values
    for _ in range(20):
        for k in range(1, count - 1):
            for row in range(len(v)):
                inside = w[row][(w[row] >= joint[row, k - 1]) & (w[row] <= joint[row, k + 1])]
                joint[row, k] = orq_levels(inside, 3)[1]
        if count == 3:
            break
    ratio = (error(v, greedy) / error(v, joint)).mean().item()
    assert 1 - 1e-6 <= ratio < (1 + 1e-6 if count == 3 else 1.03)


def even_levels(v: Tensor, count: int) -> Tensor:
    return v.abs().amax(1, keepdim=True) * torch.linspace(-1, 1, count)


@each("kind", KINDS)
def test_three_levels_are_never_worse_than_even_spacing(kind: str) -> None:
    """This holds for every bucket, against even levels from -max to max."""
    for d in (2, 3, 10, 100):
        v = draw(kind, 500, d)
        assert (error(v, orq_levels(v, 3)) <= error(v, even_levels(v, 3)) * (1 + 1e-6)).all()


def test_five_greedy_levels_can_be_worse_than_even_spacing() -> None:
    """A bucket on QSGD's own levels shows it, so that no test must require the contrary."""
    v = torch.tensor([[-1.0] + [-0.5] * 40 + [0.0] * 3 + [0.5] * 2 + [1.0]])
    assert orq_levels(v, 5).tolist() == [[-1, -1, -0.5, 0, 1]]
    assert error(v, orq_levels(v, 5)).item() == 0.5
    assert error(v, even_levels(v, 5)).item() == 0


def test_every_level_more_is_an_error_less() -> None:
    v = draw("heavy tails", 200, 64)
    errors = [error(v, orq_levels(v, 2**k + 1)) for k in range(1, 7)]
    assert all((fewer >= more * (1 - 1e-6)).all() for fewer, more in itertools.pairwise(errors))


@each("count", [2, 3, 5, 9, 10])
def test_quantiles(count: int) -> None:
    levels = quantile_levels(torch.randperm(2 * 9 * 5 * 4 + 1).float().expand(2, 3, -1), count)
    torch.testing.assert_close(levels, torch.linspace(0, 360, count).round().expand(2, 3, count))


def test_quantiles_of_fewer_values_than_levels_are_those_values() -> None:
    assert quantile_levels(torch.tensor([3.0, 1.0]), 5).tolist() == [1, 1, 3, 3, 3]
    assert quantile_levels(torch.tensor([3.0]), 3).tolist() == [3, 3, 3]


@each("kind", KINDS)
@each("d", [1, 2, 5, 64, 1000])
def test_clamp_level_is_where_the_sides_of_equation_15_cross(kind: str, d: int) -> None:
    a = draw(kind, 50, d).abs().double()
    b = clamp_level(a.float()).double().unsqueeze(1)
    for factor, sign in ((1 - 1e-6, 1), (1 + 1e-6, -1)):
        excess = torch.where(a >= factor * b, a, 0).sum(1) - d * (factor * b).squeeze(1)
        assert (sign * excess >= -1e-6 * a.sum(1)).all()


# Each density with E[|v|; |v| >= b] as a function of b; its fixed point solves equation 15.
DENSITIES: dict[str, tuple[torch.distributions.Distribution, Callable[[float], float]]] = {
    "normal": (
        torch.distributions.Normal(0.0, 1.0),
        lambda b: math.sqrt(2 / math.pi) * math.exp(-b * b / 2),
    ),
    "laplace": (torch.distributions.Laplace(0.0, 1.0), lambda b: (1 + b) * math.exp(-b)),
    "t3": (
        torch.distributions.StudentT(3.0),
        lambda b: 2 * math.sqrt(3) / math.pi / (1 + b * b / 3),
    ),
}


def clamped_error(v: Tensor, b: Tensor) -> Tensor:
    a = v.abs()
    return torch.where(a < b, b**2 - a**2, (a - b) ** 2).sum()


@each("name", DENSITIES)
def test_clamp_level_of_known_densities_and_of_brute_force(name: str) -> None:
    torch.manual_seed(0)
    density, tail = DENSITIES[name]
    expected = 0.8
    for _ in range(100):
        expected = (expected + tail(expected)) / 2
    v = density.sample((400_000,)).double()
    b = clamp_level(v)
    assert b.item() == pytest.approx(expected, abs=0.005)
    grid = torch.linspace(0.5, 1.5, 41, dtype=torch.float64) * b
    assert min(clamped_error(v, x) for x in grid) >= clamped_error(v, b) * (1 - 1e-9)


def test_two_means_by_hand() -> None:
    assert two_means(torch.tensor([[1.0, 2.0, 9.0], [5.0, 5.0, 5.0]])).tolist() == [
        [1.5, 4, 9],
        [0, 5, 5],
    ]


@each("value", [0.7, -0.1, 1e-45, 3e38])
def test_equal_values_are_their_own_mean(value: float) -> None:
    v = torch.full((2, 999), value)
    assert torch.equal(two_means(v)[:, 1:], v[:, :2])


# Rounding


def round_to_tables(x: Tensor, tables: Tensor, seed: int) -> Tensor:
    """Return `[b, d]` buckets rounded by their `[b, s]` tables."""
    levels = tables.unsqueeze(-1).unbind(-2)
    drawn = Noise(keys(seed, "test", 0, None, CPU), ((0, x.numel()),))
    words = drawn.at(torch.arange(x.numel())).words()
    codes = random_codes(x, levels, words.view(x.shape))
    assert codes.min() >= 0 and codes.max() < tables.shape[1]
    return level_values(codes, levels)


@settings(deadline=None, max_examples=200)
@given(
    size=st.integers(1, 40),
    count=st.integers(2, 40),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1.0, 1e-44, 1e37]),
)
def test_codes_name_a_neighboring_level(size: int, count: int, seed: int, scale: float) -> None:
    """Tables may have equal levels, buckets have any length, and values may be tiny or huge."""
    x = (torch.randn(3, size, generator=torch.Generator().manual_seed(seed)) * 3).round() * scale
    tables = quantile_levels(x, count)
    decoded, spread = round_to_tables(x, tables, seed), tables.unsqueeze(1)
    below = torch.where(spread <= x.unsqueeze(2), spread, -torch.inf).amax(2)
    above = torch.where(spread >= x.unsqueeze(2), spread, torch.inf).amin(2)
    assert ((decoded == below) | (decoded == above)).all()


@each("count", [2, 3, 5, 8, 33])
def test_rounding_to_a_table_is_unbiased(count: int) -> None:
    """The mean of a value's draws is within what bounded errors allow."""
    repeats, size = 4000, 50
    v = draw("heavy tails", 1, size)
    x = v.repeat(repeats, 1)
    tables = quantile_levels(x, count)
    decoded = round_to_tables(x, tables, 3)
    levels = tables[0].double()
    gaps = levels.diff()[(torch.searchsorted(levels, v[0].double()) - 1).clamp(0, count - 2)]
    bias = (decoded.double().mean(0) - v[0].double()).abs()
    assert (bias <= 5 * gaps / 2 / repeats**0.5 + 1e-6 * v.abs().max()).all()


@each("d", [1, 15, 16, 17, 48, 1000])
def test_sorted_values_come_back_sorted_and_alone(d: int) -> None:
    v = draw("heavy tails", 3, d)
    before = v.clone()
    assert torch.equal(sort(v), v.sort(-1).values)
    assert torch.equal(v, before)
