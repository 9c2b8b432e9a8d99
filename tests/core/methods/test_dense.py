"""The baselines: gradients in full and in half precision."""

from __future__ import annotations

import pytest
import torch
from gloo_pool import pool
from layout_cases import half_means, means_of_halves
from method_cases import aggregate, build_method, flat, gradients
from nightly import each, slow_but
from torch import Tensor

from gcbench.core.comm.collectives import Comm
from gcbench.core.methods.dense import Dense

SIZES = [1, 5, 103, 1000, 100_003]


def relative_error(method: Dense, workers: int, n: int = 20_000) -> float:
    """Return the error of the mean of gradients that have a third in common."""
    generator = torch.Generator().manual_seed(workers)
    common = torch.randn(1, n, generator=generator)
    g = 0.3 * common + torch.randn(workers, n, generator=generator)
    mean = g.double().mean(0)
    update = aggregate(method, {"w": g}).update["w"][0]
    return float((update - mean).norm() / mean.norm())


def test_no_sum_of_finite_halves_overflows() -> None:
    update = aggregate(Dense("float16"), {"w": torch.full((16, 3), 6e4)}).update
    torch.testing.assert_close(update["w"], torch.full((1, 3), 6e4), rtol=2e-3, atol=0)


@each(("dtype", "bits"), [("float32", 32), ("float16", 16), ("bfloat16", 16)])
def test_a_value_costs_the_bits_of_its_type(dtype: str, bits: int) -> None:
    comm = Comm(4)
    aggregate(Dense(dtype), {"w": torch.ones(4, 100)}, comm=comm)  # type: ignore[arg-type]
    assert comm.meter.sent_bits == comm.meter.received_bits == [100 * bits] * 4


@each("dtype", ["float32", "float16", "bfloat16"])
def test_what_was_sent_is_the_gradient_rounded_once(dtype: str) -> None:
    grads = gradients(range(4), 0)
    out = aggregate(Dense(dtype), grads)  # type: ignore[arg-type]
    assert torch.equal(flat(out.sent()), flat(grads).to(getattr(torch, dtype)).double())


@pytest.mark.parametrize(
    ("processes", "workers"), slow_but([(2, 4), (4, 4)], [(2, 2), (2, 4), (3, 3), (4, 4), (8, 8)])
)
def test_virtual_workers_add_halves_as_gloo_does_to_the_bit(processes: int, workers: int) -> None:
    """Chunks of all sizes, of one and of several segments; two workers a process, too."""
    sizes = [*SIZES, 3_000_001] if processes > 4 else SIZES
    virtual = half_means(Comm(workers), sizes)
    for real in pool(processes).run(means_of_halves, workers, sizes):
        assert all(map(torch.equal, real, virtual))
    once = [x.float().mean(0) for x in _rows(workers, sizes)]
    assert processes < 3 or not all(map(torch.equal, once, (x[0].float() for x in virtual)))


def _rows(workers: int, sizes: list[int]) -> list[Tensor]:
    from layout_cases import one_tensor

    halves = torch.float16, torch.bfloat16
    return [one_tensor(range(workers), n)["w"].to(dtype) for dtype in halves for n in sizes]


def test_the_error_of_sums_in_bfloat16_grows_with_workers_and_that_in_fp32_does_not() -> None:
    """The errors of `wire` were measured by a program with a loop of its own, those of 4 and 8
    workers on gloo.
    """
    measured = {4: 3.02e-3, 8: 3.70e-3, 16: 4.64e-3, 64: 8.12e-3, 256: 1.56e-2}
    wire, fp32 = Dense("bfloat16"), Dense("bfloat16", "fp32")
    for workers, error in measured.items():
        assert relative_error(wire, workers) == pytest.approx(error, rel=0.05), workers
    cast = 1.66e-3  # of rounding a normal value once
    for workers, inside in {4: 1.49e-3, 8: 1.33e-3, 16: 1.12e-3, 64: 6.7e-4, 256: 3.5e-4}.items():
        assert relative_error(fp32, workers) == pytest.approx(
            (cast**2 + inside**2) ** 0.5, rel=0.05
        ), workers


@each("dtype", ["float16", "bfloat16"])
def test_accumulation_in_fp32_rounds_the_mean_of_rounded_gradients_once(dtype: str) -> None:
    grads, kind = gradients(range(5), 0), getattr(torch, dtype)
    update = aggregate(Dense(dtype, "fp32"), grads).update  # type: ignore[arg-type]
    for name, g in grads.items():
        exact = g.to(kind).double().mean(0, keepdim=True)
        assert torch.equal(update[name], exact.float().to(kind).float())


@each("accumulate", ["wire", "fp32"])
@each("choice", ["fp16", "bf16"])
def test_rounding_by_chance_has_the_right_mean(choice: str, accumulate: str) -> None:
    """So that the mean of many steps is nearer than any half-precision value, denormals too."""
    method = build_method(choice, accumulate=accumulate, rounding="stochastic")
    x = torch.tensor([1 + 2**-9.5, -3.3e-6, 1e-7, 200.07, 0.0]).repeat(4, 4000, 1)
    update = aggregate(method, {"w": x}).update["w"][0]
    kind = torch.float16 if choice == "fp16" else torch.bfloat16
    assert torch.equal(update, update.to(kind).float())
    for column, value in zip(update.double().T, x[0, 0].double(), strict=True):
        spread = float(column.std()) / 4000**0.5
        assert abs(float(column.mean() - value)) <= 5 * spread, value
        assert value == 0 or len(column.unique()) > 1
