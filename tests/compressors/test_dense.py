"""The baselines: gradients in full and in half precision."""

from __future__ import annotations

import torch
from method_cases import aggregate, flat, gradients
from nightly import each

from gcbench.comm.collectives import Comm
from gcbench.compressors.dense import Dense


def test_no_sum_of_finite_halves_overflows() -> None:
    update = aggregate(Dense("float16"), {"w": torch.full((16, 3), 6e4)}).update
    torch.testing.assert_close(update["w"], torch.full((1, 3), 6e4), rtol=1e-3, atol=0)


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
