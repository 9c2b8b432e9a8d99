"""Natural compression rounds to either power of two around a value, with the right probability."""

from __future__ import annotations

import outside
import pytest
import torch
from method_cases import aggregate, flat, gradients
from nightly import each

from gcbench.core.methods.natural import Natural
from gcbench.core.wrappers.build import build

LARGEST = torch.finfo(torch.float32).max


def rounded(values: list[float], copies: int, number: int = 0) -> torch.Tensor:
    """Return what one worker sends for `copies` of each value, `[values, copies]`."""
    x = torch.tensor(values).repeat_interleave(copies).unsqueeze(0)
    return aggregate(build(Natural()), {"w": x}, number=number).update["w"].view(-1, copies)


@each("exponent", [-125, -30, 0, 7, 120])
@each("mantissa", [0.0, 0.05, 1 / 3, 0.5, 0.9])
def test_a_value_goes_to_either_power_around_it_unbiased(exponent: int, mantissa: float) -> None:
    """The variance is m (1 - m) 4^e, at most an eighth of the square, reached at m = 1/3."""
    t, n = (1 + mantissa) * 2.0**exponent, 200_000
    for sign in (1, -1):
        sent = rounded([sign * t], n)[0].double() * sign
        up = (sent == 2.0 ** (exponent + 1)).sum().item()
        assert ((sent == 2.0**exponent) | (sent == 2.0 ** (exponent + 1))).all()
        assert up / n == pytest.approx(mantissa, abs=5 * (mantissa * (1 - mantissa) / n) ** 0.5)
        variance = (sent / t - 1).square().mean().item()
        assert variance == pytest.approx(mantissa * (1 - mantissa) / (1 + mantissa) ** 2, rel=0.05)
        assert variance < 1 / 8 * 1.02


@each("tail", [1, 5])
def test_the_variance_of_a_vector_is_at_most_an_eighth(tail: int) -> None:
    v = torch.randn(1, 4000, generator=torch.Generator().manual_seed(tail)) ** tail
    steps = [aggregate(build(Natural()), {"w": v}, number=i).update["w"] for i in range(50)]
    errors = torch.cat(steps) - v
    assert 1 / 16 < errors.square().sum(1).mean() / v.square().sum() <= 1 / 8
    assert errors.mean(0).norm() < 2**0.5 * (errors.square().sum(1).mean() / 50).sqrt()


def test_the_ends_of_float32() -> None:
    """Zeros stay, denormals are unbiased, and the largest values stay finite."""
    assert not rounded([0.0, -0.0], 10).any()
    tiny = rounded([3e-39], 200_000)[0]
    assert set(tiny.tolist()) == {0.0, 2.0**-126}
    assert tiny.double().mean().item() == pytest.approx(3e-39, rel=0.02)
    assert (rounded([LARGEST, -LARGEST], 100).abs() == 2.0**127).all()
    seen = rounded([float("inf"), float("-inf"), float("nan")], 100)
    assert (seen[0] == torch.inf).all() and (seen[1] == -torch.inf).all()
    assert not seen[2].isfinite().any()


def test_somebody_elses_sends_the_same_bits() -> None:
    for number in range(3):
        grads = gradients(range(4), number)
        ours = aggregate(build(Natural()), grads, number=number)
        theirs = aggregate(build(outside.Natural()), grads, number=number)
        assert torch.equal(flat(ours.sent()), flat(theirs.sent()))
