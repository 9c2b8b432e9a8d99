"""QSGD: its levels, noise and promises. The paper's lemmas are tested in tests/papers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from method_cases import aggregate, build_method, flat
from nightly import each
from torch import Tensor

from gcbench.core.exchange.aligned import Aligned
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build

N = 1000  # not a multiple of the bucket sizes


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
    """Return the decoded values of one gradient, `[repeats, n]`, one row per virtual worker."""
    rows = v.repeat(repeats, 1)
    return flat(aggregate(build(method), {"w": rows}).sent())


@each("kind", ["denormals", "zeros"])
@each("norm", ["linf", "l2"])
def test_denormals_and_zeros_stay_within_their_scale(kind: str, norm: str) -> None:
    v = torch.arange(N) * 1e-45 if kind == "denormals" else torch.zeros(N)
    decoded = samples(QSGD(7, norm, bucket_size=64), v, 20)  # type: ignore[arg-type]
    assert decoded.isfinite().all()
    assert (decoded >= 0).all() and decoded.max() <= 1.01 * 8 * v.max()


@each("levels", [1, 2, 3, 5, 7, 12, 100, 127])
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


@each(("levels", "bits"), [(1, 2), (2, 3), (3, 3), (4, 4), (5, 4), (7, 4), (8, 5), (127, 8)])
def test_bits_that_levels_need(levels: int, bits: int) -> None:
    assert (
        QSGD(levels, bucket_size=512).analytic_bits_per_value
        == bits
        == math.ceil(math.log2(2 * levels + 1))
    )


@each("bits", range(2, 9))
def test_bits_of_the_command_line_are_levels_with_a_sign(bits: int) -> None:
    method: Any = build_method("qsgd", bits=bits, min_size=0)
    assert method.inner.codec.levels == 2 ** (bits - 1) - 1


def test_workers_and_steps_round_independently() -> None:
    """The noise of 64 workers averages out, and so does that of 64 steps."""
    v = adversarial()["random"]
    errors = samples(QSGD(1, bucket_size=64), v, 64) - v.double()
    single = errors.square().sum(1).mean()
    assert errors.mean(0).square().sum().item() == pytest.approx(single.item() / 64, rel=0.2)
    method = build(QSGD(1, bucket_size=64))
    by_step = [flat(aggregate(method, {"w": v[None]}, number=n).sent())[0] for n in range(64)]
    error = torch.stack(by_step).mean(0) - v.double()
    assert error.square().sum().item() == pytest.approx(single.item() / 64, rel=0.2)


def test_a_worker_with_a_large_gradient_does_not_coarsen_the_others() -> None:
    v = adversarial()["random"]
    rows = torch.stack([v, 1e6 * v])
    sent = flat(aggregate(build(QSGD(7, bucket_size=64)), {"w": rows}).sent())
    assert (sent[0] - v.double()).abs().max() < v.abs().max() / 7 * 1.001


def test_the_update_is_the_mean_of_what_was_sent() -> None:
    rows = torch.randn(4, 10, 13, generator=torch.Generator().manual_seed(0))
    out = aggregate(build(QSGD(3, bucket_size=16)), {"w": rows})
    torch.testing.assert_close(flat(out.update)[0], flat(out.sent()).mean(0), rtol=0, atol=1e-6)


@each(("levels", "bucket"), [(1, 3), (2, 15), (7, 195)])
@each("norm", ["linf", "l2"])
def test_contractive_holds_up_to_the_largest_bucket_that_promises_it(
    levels: int, bucket: int, norm: str
) -> None:
    """In each vector, all values but one are the same fraction of a level."""
    method = QSGD(levels, norm, bucket_size=bucket)  # type: ignore[arg-type]
    assert method.properties.contractive
    assert not QSGD(levels, norm, bucket_size=bucket + 1).properties.contractive  # type: ignore[arg-type]
    for fraction in (0.02, 0.1, 0.25, 0.4, 0.5, 0.7):
        v = torch.full((bucket,), fraction / levels)
        v[0] = 1
        errors = samples(method, v, 300) - v.double()
        assert errors.square().sum(1).mean() < v.double().square().sum()


def test_default_buckets_of_four_bits_expand_some_vectors() -> None:
    """Contraction is not promised there because it does not hold, not out of caution."""
    v = torch.full((512,), 0.25 / 7)
    v[0] = 1
    errors = samples(QSGD(7, bucket_size=512), v, 200) - v.double()
    assert errors.square().sum(1).mean() > v.double().square().sum()
    assert not QSGD(7, bucket_size=512).properties.contractive


def test_aligned_buckets_hold_whole_receptive_fields() -> None:
    """A bucket of 32 holds three fields of 3 x 3; a field of 7 x 7, being larger, is one bucket."""
    grads = {
        "small": torch.randn(1, 4, 5, 3, 3),
        "large": torch.randn(1, 2, 3, 7, 7),
        "matrix": torch.randn(1, 8, 100),
    }
    aligned = Aligned(QSGD(7, bucket_size=32))
    assert [aligned.bucket_size(g) for g in grads.values()] == [27, 49, 32]
    update = aggregate(aligned, grads).update
    for name, size in {"small": 27, "large": 49, "matrix": 32}.items():
        for values, decoded in zip(
            grads[name].flatten().split(size), update[name].flatten().split(size), strict=True
        ):
            largest = values.abs().argmax()
            assert decoded[largest] == values[largest], "the largest value of a bucket is its scale"


def test_a_field_larger_than_a_bucket_of_its_own_size_promises_nothing() -> None:
    """A bucket of 3 would contract, but a field of 7 x 7 is one bucket, and expands this vector."""
    field = torch.full((1, 1, 1, 7, 7), 0.25)
    field[0, 0, 0, 0, 0] = 1
    aligned = build(QSGD(1, bucket_size=3), align=True)
    errors = [aggregate(aligned, {"w": field}, number=n).sent()["w"] - field for n in range(100)]
    assert torch.stack(errors).square().sum() > 100 * field.square().sum()
    assert not aligned.properties.contractive
