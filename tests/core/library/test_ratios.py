"""What handles say of their loops: ratios, warnings, and nothing of the user's default dtype."""

from __future__ import annotations

import pytest
import torch
from backends import needs_compiler
from gloo_pool import pool
from ratio_cases import ratios, under_default, warnings_of_sums


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_none_sends_as_many_bits_as_fp32_whatever_the_module(workers: int) -> None:
    for name, expected in (("none", 1), ("bf16", 2)):
        for seen in pool(workers).run(ratios, name):
            assert len(seen) == 5 + (workers == 4)
            assert seen == dict.fromkeys(seen, expected), name


@pytest.mark.parametrize(
    "kind", ["ddp", "overlap", pytest.param("replicas", marks=pytest.mark.slow)]
)
def test_sums_of_updates_without_a_scale_are_warned_of_once(kind: str) -> None:
    between = kind == "replicas"  # the reduce-scatter of FSDP2 carries no such method
    leave_out = "set_requires_gradient_sync(False)" if between else "no_sync()"
    workers = pool(4 if between else 2)
    for said in workers.run(warnings_of_sums, "signum", kind):
        assert len(said) == 1 and f"type {leave_out} for all of them but the last" in said[0]
    assert not any(workers.run(warnings_of_sums, "sign_norm" if kind == "ddp" else "qsgd", kind))


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_default_dtype_of_the_user_changes_no_update(default: torch.dtype) -> None:
    needs_compiler()
    expected = pool(2).run(under_default, torch.float32)
    for seen, right in zip(pool(2).run(under_default, default), expected, strict=True):
        assert all(
            a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(seen, right, strict=True)
        )
