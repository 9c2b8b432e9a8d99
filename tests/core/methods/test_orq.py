"""ORQ, Linear, even levels, TernGrad and BinGrad: the errors and bits of the paper."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from method_cases import aggregate, build_method, flat
from nightly import each
from torch import Tensor
from torch.nn.functional import cross_entropy

from gcbench.core.codec import Codec
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Properties
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.orq import ORQ, BinGradB, BinGradPB, EvenLevels, Linear
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build
from gcbench.runner.models.cifar_resnet import resnet110

N = 2048 * 200


def sent(method: Codec, rows: Tensor) -> Tensor:
    return flat(aggregate(build(method), {"w": rows}).sent())


def relative_error(method: Codec, v: Tensor) -> float:
    """Return |Q(v) - v|^2 / |v|^2."""
    return ((sent(method, v) - v.double()).square().sum() / v.double().square().sum()).item()


def sample(density: str, n: int = N) -> Tensor:
    torch.manual_seed(0)
    return {
        "normal": torch.distributions.Normal(0.0, 1.0),
        "laplace": torch.distributions.Laplace(0.0, 1.0),
        "t3": torch.distributions.StudentT(3.0),
        "uniform": torch.distributions.Uniform(-1.0, 1.0),
    }[density].sample((1, n))


# Errors

# Relative errors on Laplace values, in buckets of 2048, with 3, 5 and 9 levels.
ERRORS = {ORQ: (2.68, 0.50, 0.11), EvenLevels: (2.91, 1.06, 0.31), Linear: (2.69, 1.21, 0.51)}


@each("method", ERRORS)
def test_errors_on_laplace(method: type[ORQ] | type[EvenLevels] | type[Linear]) -> None:
    for count, expected in zip((3, 5, 9), ERRORS[method], strict=True):
        assert relative_error(method(count), sample("laplace")) == pytest.approx(expected, rel=0.1)


@each("count", [3, 5, 9])
@each("density", ["normal", "laplace", "t3"])
def test_orq_errs_less_than_the_others(density: str, count: int) -> None:
    v = sample(density)
    assert relative_error(ORQ(count), v) < min(
        relative_error(EvenLevels(count), v), relative_error(Linear(count), v)
    )


@each("count", [3, 5, 9])
def test_uniform_values_leave_nothing_to_gain(count: int) -> None:
    """Remark 1.1: the optimal levels are the even ones; the error is that of a gap 2 / (s - 1)."""
    v = sample("uniform")
    expected = (2 / (count - 1)) ** 2 / 6 * 3
    for method in (ORQ(count), EvenLevels(count), Linear(count)):
        assert relative_error(method, v) == pytest.approx(expected, rel=0.02)


@each(("density", "pb", "b"), [("normal", 0.453, 0.363), ("laplace", 0.579, 0.5)])
def test_errors_of_bingrad(density: str, pb: float, b: float) -> None:
    """They are below the errors of three levels; that of the biased BinGrad-b is the lowest.

    It is 1 - (E|v|)^2 / E v^2 if the density is symmetric.
    """
    v = sample(density)
    assert relative_error(BinGradPB(), v) == pytest.approx(pb, rel=0.02)
    assert relative_error(BinGradB(), v) == pytest.approx(b, rel=0.02)
    symmetric = 1 - v.double().abs().mean() ** 2 / v.double().square().mean()
    assert relative_error(BinGradB(), v) == pytest.approx(symmetric.item(), rel=0.03)
    assert 1.7 < relative_error(ORQ(3), v) < relative_error(EvenLevels(3), v)


def test_bingrad_pb_is_unbiased_inside_and_clamped_outside() -> None:
    v = sample("normal", 64)
    draws = sent(BinGradPB(bucket_size=64), v.repeat(1500, 1))
    b = draws.abs().amax().item()
    error = draws.mean(0) - v[0].double().clamp(-b, b)
    assert (error.abs() <= 5 * b / 1500**0.5).all()
    assert b == pytest.approx(v[v.abs() >= b].abs().sum().item() / 64, rel=0.05)
    assert ((draws == b) | (draws == -b)).all()


def test_bingrad_b_sends_the_means_of_both_sides() -> None:
    v = sample("normal", 1000)
    out = sent(BinGradB(per_layer=True), v)[0]
    b0 = v.mean()
    for side in (v[0] < b0, v[0] >= b0):
        torch.testing.assert_close(
            out[side], v[0][side].double().mean().expand(int(side.sum())), rtol=1e-6, atol=0
        )


def test_variance_of_terngrad() -> None:
    """It is sum m |v| - v^2, m = max |v|, within five standard errors; exact levels are kept."""
    v, repeats = sample("normal", 300), 1500
    errors = sent(EvenLevels(3, per_layer=True), v.repeat(repeats, 1)) - v.double()
    variance = (v.abs().max() * v.abs() - v.square())[0].double()
    squares = errors.square().sum(1)
    assert (squares.mean() - variance.sum()).abs() < 5 * squares.std() / math.sqrt(repeats)
    z = (errors.mean(0) / (variance / repeats).sqrt())[variance > 0]
    assert z.mean().abs() < 0.25 and 0.85 < z.std() < 1.15
    on = torch.tensor([[0.0, 2.0, -2.0, 0.0]])
    assert torch.equal(sent(EvenLevels(3), on.repeat(50, 1)).float(), on.repeat(50, 1))


@each("levels", [1, 4, 7])
def test_odd_counts_are_those_of_qsgd(levels: int) -> None:
    """They have the same grid, and the same error up to chance."""
    v = sample("laplace", 2048 * 20)
    ours, theirs = EvenLevels(2 * levels + 1), QSGD(levels, bucket_size=2048)
    assert relative_error(ours, v) == pytest.approx(relative_error(theirs, v), rel=0.05)
    codes = sent(EvenLevels(2 * levels + 1, per_layer=True), v) / v.abs().max() * levels
    torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-5)


@each("method", [ORQ(5), Linear(5), EvenLevels(5), BinGradPB(), BinGradB()])
def test_what_one_worker_sends_depends_on_its_own_values_alone(method: Codec) -> None:
    v = sample("laplace", 4100)
    alone = sent(method, v)
    beside = sent(method, torch.cat([v, 1e6 * v.flip(1)]))
    assert torch.equal(alone[0], beside[0])


# Promises


@each(
    "method",
    [EvenLevels(2, bucket_size=2), EvenLevels(3, bucket_size=4), EvenLevels(4, bucket_size=9)],
)
def test_contractive_holds_up_to_the_largest_bucket_that_promises_it(method: EvenLevels) -> None:
    size, s = method.bucket_size, method.level_count
    if size == (s - 1) ** 2:
        assert not EvenLevels(s, bucket_size=size + 1).properties.contractive
        for x in (0.0, 0.1, 0.3, 0.5, 0.9):
            assert_contracts(method, torch.tensor([1.0] + [x / (s - 1)] * (size - 1)))
    else:
        assert not method.properties.contractive


def test_contractive_holds_for_orq_in_small_buckets() -> None:
    """A middle level helps least if half of the values are near one point and half near another."""
    method = ORQ(3, bucket_size=9)
    assert not ORQ(3, bucket_size=10).properties.contractive
    for x in (0.3, 0.5, 0.7):
        assert_contracts(method, torch.tensor([-1.0] + [-x] * 4 + [x] * 3 + [1.0]))
    assert not ORQ(3, bucket_size=2, per_layer=True).properties.contractive


def assert_contracts(method: Bucketed, v: Tensor) -> None:
    assert method.properties.contractive  # type: ignore[attr-defined]
    errors = sent(method, v.repeat(400, 1)) - v.double()  # type: ignore[arg-type]
    squares = errors.square().sum(1)
    assert squares.mean() - 5 * squares.std() / 400**0.5 < v.double().square().sum()


def test_default_buckets_of_three_levels_expand() -> None:
    v = sample("laplace")
    assert relative_error(ORQ(3), v) > 1 and ORQ(3).properties == Properties(unbiased=True)
    assert relative_error(Linear(5), v) > 1 and Linear(5).properties == Properties(unbiased=True)


@each("method", [BinGradPB(bucket_size=32), BinGradB(bucket_size=32)])
def test_bingrad_always_contracts(method: BinGradPB | BinGradB) -> None:
    torch.manual_seed(0)
    for v in (
        torch.randn(32),
        torch.randn(32) ** 5,
        torch.eye(32)[3],
        torch.full((32,), -0.3),
        torch.rand(32) + 5,
    ):
        assert_contracts(method, v)


# Bits


@pytest.mark.parametrize(
    ("choice", "per_value"),
    [
        ("terngrad", 1.6 + 32 / 2048),
        ("qsgd_levels", 7 / 3 + 32 / 2048),
        ("linear", 7 / 3 + 160 / 2048),
        ("bingrad_pb", 1 + 32 / 2048),
        ("bingrad_b", 1 + 64 / 2048),
    ],
)
def test_bits_a_value(choice: str, per_value: float) -> None:
    v, comm = sample("normal", 1 << 18), Comm(1)
    aggregate(build_method(choice), {"w": v}, comm=comm)
    assert comm.meter.sent_bits[0] / v.numel() == pytest.approx(per_value, rel=1e-3)


# Levels on which all workers agree


@each("method", [ORQ, Linear, EvenLevels])
@each(("count", "workers"), [(3, 1), (3, 4), (5, 3), (9, 3)])
def test_sums_are_those_of_what_was_sent_on_common_levels(
    method: type[ORQ] | type[Linear] | type[EvenLevels], count: int, workers: int
) -> None:
    """The mean over many copies of a bucket is unbiased: all values are inside the levels."""
    bucket, repeats = (
        sample("normal", 64 * workers).view(workers, 64)
        * torch.arange(1, workers + 1).unsqueeze(1),
        400,
    )
    out = aggregate(
        build(method(count, bucket_size=64), exchange="sum"), {"w": bucket.repeat(1, repeats)}
    )
    sent = out.sent()["w"]
    torch.testing.assert_close(out.update["w"], sent.mean(0, keepdim=True), rtol=1e-5, atol=1e-5)
    assert len(sent.unique()) <= count
    errors = (flat(out.update) - bucket.double().mean(0).repeat(repeats)).view(repeats, 64)
    assert errors.mean(0).square().sum() < 2 * errors.square().sum(1).mean() / repeats


@each("workers", [2, 3])
@each("count", [2, 4])
def test_even_counts_of_levels_are_summed_too(count: int, workers: int) -> None:
    """With an even number of levels, zero is between two codes."""
    out = aggregate(
        build(EvenLevels(count), exchange="sum"),
        {"w": sample("normal", 500 * workers).view(workers, 500)},
    )
    torch.testing.assert_close(
        out.update["w"], out.sent()["w"].mean(0, keepdim=True), rtol=1e-5, atol=1e-5
    )


def test_agreed_levels_reach_from_the_least_to_the_greatest_value_of_all() -> None:
    rows = torch.stack(
        [torch.linspace(-1, 1, 33), torch.linspace(-4, 0, 33), torch.linspace(0, 9, 33)]
    )
    levels = aggregate(build(ORQ(3), exchange="sum"), {"w": rows}).sent()["w"].unique()
    assert levels.tolist() == pytest.approx([-4, (0 - 2 + 4.5) / 3, 9], abs=0.2)


def test_bingrad_agrees_on_the_largest_level() -> None:
    rows = torch.stack([sample("normal", 256)[0], 3 * sample("t3", 256)[0]])
    b = [flat(aggregate(build(BinGradPB()), {"w": row[None]}).sent()).abs().max() for row in rows]
    sent_ones = aggregate(build(BinGradPB(), exchange="sum"), {"w": rows}).sent()["w"]
    assert torch.allclose(sent_ones.abs().double(), max(b).expand(sent_ones.shape), rtol=1e-6)


@each(("count", "workers"), [(3, 5), (5, 7), (9, 10)])
def test_counts_cost_less_than_a_gather_from_some_workers_on(count: int, workers: int) -> None:
    def received(exchange: str, workers: int) -> float:
        comm, rows = Comm(workers), sample("normal", workers * 8192).view(workers, -1)
        method = build(ORQ(count), exchange=exchange)  # type: ignore[arg-type]
        aggregate(method, {"w": rows}, comm=comm)
        return comm.meter.received_bits[0]

    assert received("sum", workers + 1) < received("gather", workers + 1)
    assert received("sum", workers - 1) > received("gather", workers - 1)


def test_counts_that_cost_no_less_than_fp32_are_refused() -> None:
    says = "17 levels by 4 workers take 38 bits per value.*type exchange=scatter_coded"
    with pytest.raises(ValueError, match=says):
        aggregate(build(ORQ(17), exchange="sum"), {"w": sample("normal", 64).expand(4, -1)})


@each("exchange", ["scatter", "scatter_coded"])
def test_a_tensor_is_no_bucket_where_it_is_cut(exchange: str) -> None:
    with pytest.raises(ValueError, match="type per_layer=false"):
        build_method("orq", per_layer=True, exchange=exchange)


@pytest.mark.parametrize("choice", ["bingrad_b", "scaled_sign", "onebit"])
def test_codes_without_a_common_grid_are_not_summed(choice: str) -> None:
    with pytest.raises(ValueError, match="exchange=sum needs codes on a shared grid"):
        build_method(choice, exchange="sum")


# Settings


def test_terngrad_is_three_levels_with_clipping() -> None:
    v = sample("t3", 4096)
    limit = 2.5 * v.double().std(correction=0).item()
    assert flat(
        aggregate(build_method("terngrad"), {"w": v}).sent()
    ).abs().max().item() == pytest.approx(limit, rel=1e-5)
    unclipped = flat(aggregate(build_method("terngrad", clip_sigma="null"), {"w": v}).sent())
    assert torch.equal(unclipped, sent(EvenLevels(3), v))


def test_per_layer_makes_every_tensor_a_bucket() -> None:
    v = sample("normal", 5000)
    one = flat(
        aggregate(build_method("bingrad_b", per_layer=True), {"w": v, "x": 3 * v[:, :10]}).sent()
    )
    assert one[0, :5000].unique().numel() == one[0, 5000:].unique().numel() == 2


# Buckets through the gradient


@pytest.fixture(scope="module")
def resnet110_gradient() -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = resnet110((3, 32, 32), 10)
    cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.arange(8)).backward()
    return {name: cast(Tensor, p.grad)[None] for name, p in model.named_parameters()}


def terngrad_error(grads: dict[str, Tensor], bucket_size: int, scope: str) -> float:
    """Return |Q(v) - v|^2 / |v|^2 of one draw."""
    out = aggregate(
        build_method("terngrad", bucket_size=bucket_size, bucket_scope=scope, clip_sigma="null"),
        grads,
    )
    v = flat(grads)
    return float((flat(out.sent()) - v).square().sum() / v.square().sum())


def test_the_error_of_large_buckets_grows_where_they_run_through_the_gradient(
    resnet110_gradient: dict[str, Tensor],
) -> None:
    """Buckets divide the whole gradient in section 5 of the paper.

    No tensor of ResNet-110 has more than 36,864 values, and most have 2,304, so that buckets that
    restart at every tensor do not grow further.
    """
    grown = {
        scope: terngrad_error(resnet110_gradient, 32768, scope)
        / terngrad_error(resnet110_gradient, 2048, scope)
        for scope in ("tensor", "gradient")
    }
    assert grown["tensor"] < 1.3 and grown["gradient"] > 1.8


def test_buckets_through_the_gradient_have_the_error_of_the_paper(
    resnet110_gradient: dict[str, Tensor],
) -> None:
    """E|Q(v) - v|^2 = sum m |v_i| - v_i^2, where m is the largest magnitude in the bucket.

    A bucket is D consecutive values of the whole gradient.
    """
    v = flat(resnet110_gradient)[0]
    for size in (2048, 8192, 32768):
        buckets = torch.nn.functional.pad(v, (0, -len(v) % size)).view(-1, size).abs()
        expected = (
            buckets.amax(1, keepdim=True) * buckets - buckets.square()
        ).sum() / v.square().sum()
        assert terngrad_error(resnet110_gradient, size, "gradient") == pytest.approx(
            expected.item(), rel=0.05
        )
