"""QSGD: unbiased, its variance bound, its levels."""

from __future__ import annotations

import math

import pytest
import torch
from method_cases import aggregate, built, flat
from torch import Tensor

from gcbench.compressors import build
from gcbench.compressors.qsgd import QSGD

N = 1000  # no multiple of the buckets


def adversarial() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    spike = torch.full((N,), 1e-3)
    spike[::100] = 5.0
    return {
        "random": torch.randn(N, generator=generator),
        "heavy tails": torch.randn(N, generator=generator) ** 5,
        "flat": torch.full((N,), -0.3),
        "one spike a bucket": spike,
        "one value": torch.eye(N)[7],
        "small": torch.randn(N, generator=generator) * 1e-30,
        "large": torch.randn(N, generator=generator) * 1e30,
    }


def samples(method: QSGD, v: Tensor, repeats: int) -> Tensor:
    """`[repeats, n]` decoded values of one gradient, of as many virtual workers."""
    rows = v.repeat(repeats, 1)
    return flat(aggregate(build(method), {"w": rows}).sent())


@pytest.mark.parametrize("kind", adversarial())
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("levels", "bucket"), [(1, 64), (4, 64), (7, 512), (5, 7), (100, 128), (127, 5000)])
def test_unbiased_with_the_variance_of_lemma_3_1(kind: str, norm: str, levels: int, bucket: int) -> None:
    """E||Q(v) - v||^2 <= min(d / s^2, sqrt(d) / s) ||v||^2 in every bucket; the maximum is never a larger scale."""
    v, repeats = adversarial()[kind], 200
    errors = samples(QSGD(levels, norm, bucket_size=bucket), v, repeats) - v.double()  # type: ignore[arg-type]
    for start in range(0, N, bucket):
        part, error = v[start : start + bucket].double(), errors[:, start : start + bucket]
        d, energy = part.numel(), part.square().sum()
        variances = error.square().sum(1)
        bound = min(d / levels**2, math.sqrt(d) / levels) * energy
        assert variances.mean() <= bound + 4 * variances.std() / repeats**0.5 + 1e-10 * energy

        scale = part.abs().max() if norm == "linf" else part.norm()
        grid = scale / levels
        p = (part.abs() / grid.clamp_min(1e-300)).frac()
        allowed = bernstein(grid * (p * (1 - p)).sqrt(), grid, repeats) + 1e-6 * scale
        assert (error.mean(0).abs() <= allowed).all()


def bernstein(deviation: Tensor, largest: Tensor, repeats: int) -> Tensor:
    """What a mean of bounded errors exceeds once in 1e9."""
    chance = math.log(2e9)
    return (2 * deviation**2 * chance / repeats).sqrt() + largest * chance / (3 * repeats)


@pytest.mark.parametrize("levels", [1, 4])
def test_the_bound_is_nearly_tight_for_flat_vectors(levels: int) -> None:
    """||v||^2 sum p (1 - p) / s^2 with p = s / sqrt(n): a wrong scale or too coarse a grid would not meet it."""
    v = torch.full((1024,), 0.3)
    errors = samples(QSGD(levels, "l2", bucket_size=1024), v, 400) - v.double()
    p = levels / 32
    expected = 1024 * p * (1 - p) / levels**2
    measured = errors.square().sum(1).mean() / v.double().square().sum()
    assert measured.item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("kind", ["denormals", "zeros"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_denormals_and_zeros_stay_within_their_scale(kind: str, norm: str) -> None:
    v = torch.arange(N) * 1e-45 if kind == "denormals" else torch.zeros(N)
    decoded = samples(QSGD(7, norm, bucket_size=64), v, 20)  # type: ignore[arg-type]
    assert decoded.isfinite().all()
    assert (decoded >= 0).all() and decoded.max() <= 1.01 * 8 * v.max()


def test_sparsity_of_the_2_norm() -> None:
    """E||Q(v)||_0 <= s (s + sqrt n), lemma 3.1."""
    for levels in (1, 4):
        nonzero = (samples(QSGD(levels, "l2", bucket_size=1000), adversarial()["random"], 100) != 0).sum(1).double()
        assert nonzero.mean() <= levels * (levels + math.sqrt(1000))


@pytest.mark.parametrize("levels", [1, 2, 3, 5, 7, 12, 100, 127])
def test_values_are_the_levels_and_nothing_else(levels: int) -> None:
    v = adversarial()["random"]
    v[0] = 8.0  # the scale
    codes = samples(QSGD(levels, bucket_size=1000), v, 50) / 8 * levels
    torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-4)
    assert codes.abs().max().round() == levels
    assert ((codes.round() == 0) | (codes.sign() == v.sign())).all()


def test_values_on_a_level_stay_there() -> None:
    v = torch.tensor([-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0])
    assert torch.equal(samples(QSGD(4, bucket_size=9), v, 100).float(), v.repeat(100, 1))


@pytest.mark.parametrize(("levels", "bits"), [(1, 2), (2, 3), (3, 3), (4, 4), (5, 4), (7, 4), (8, 5), (127, 8)])
def test_bits_that_levels_need(levels: int, bits: int) -> None:
    assert QSGD(levels, bucket_size=512).analytic_bits_per_value == bits == math.ceil(math.log2(2 * levels + 1))


@pytest.mark.parametrize("bits", range(2, 9))
def test_bits_of_the_command_line_are_levels_with_a_sign(bits: int) -> None:
    assert built("qsgd", bits=bits, min_size=0).codec.levels == 2 ** (bits - 1) - 1  # type: ignore[attr-defined]


def test_workers_and_steps_round_independently() -> None:
    """So that the noise of W workers averages out."""
    v = adversarial()["random"]
    errors = samples(QSGD(1, bucket_size=64), v, 64) - v.double()
    single = errors.square().sum(1).mean()
    assert errors.mean(0).square().sum().item() == pytest.approx(single.item() / 64, rel=0.2)


def test_a_worker_with_a_large_gradient_does_not_coarsen_the_others() -> None:
    v = adversarial()["random"]
    rows = torch.stack([v, 1e6 * v])
    sent = flat(aggregate(build(QSGD(7, bucket_size=64)), {"w": rows}).sent())
    assert (sent[0] - v.double()).abs().max() < v.abs().max() / 7 * 1.001


def test_the_update_is_the_mean_of_what_was_sent() -> None:
    rows = torch.randn(4, 10, 13, generator=torch.Generator().manual_seed(0))
    out = aggregate(build(QSGD(3, bucket_size=16)), {"w": rows})
    torch.testing.assert_close(flat(out.update)[0], flat(out.sent()).mean(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("levels", [0, 128])
def test_levels_that_no_code_holds_are_refused(levels: int) -> None:
    with pytest.raises(ValueError, match="levels"):
        QSGD(levels, bucket_size=512)


@pytest.mark.parametrize(("levels", "bucket"), [(1, 3), (2, 15), (7, 195)])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_contractive_holds_up_to_the_largest_bucket_that_promises_it(levels: int, bucket: int, norm: str) -> None:
    """Against vectors whose values lie at any one fraction of a level."""
    method = QSGD(levels, norm, bucket_size=bucket)  # type: ignore[arg-type]
    assert method.properties.contractive
    assert not QSGD(levels, bucket_size=bucket + 1).properties.contractive
    for fraction in (0.02, 0.1, 0.25, 0.4, 0.5, 0.7):
        v = torch.full((bucket,), fraction / levels)
        v[0] = 1
        errors = samples(method, v, 300) - v.double()
        assert errors.square().sum(1).mean() < v.double().square().sum()


def test_default_buckets_of_four_bits_expand_some_vectors() -> None:
    """So that not promising contraction there is no caution but a fact."""
    v = torch.full((512,), 0.25 / 7)
    v[0] = 1
    errors = samples(QSGD(7, bucket_size=512), v, 200) - v.double()
    assert errors.square().sum(1).mean() > v.double().square().sum()
    assert not QSGD(7, bucket_size=512).properties.contractive
