"""A paper's ratio, which counts only codes, and the metered one, with scales and tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from method_cases import aggregate, build_method
from nightly import each, slow_but

from gcbench.core.comm.collectives import Comm
from gcbench.core.wrappers.virtual import analytic_ratio, compressed_share
from gcbench.runner.models.resnet import resnet18


@pytest.mark.parametrize(
    ("levels", "printed", "metered"),
    slow_but([(5, 13.8, 13.3)], [(3, 20.2, 19.4), (5, 13.8, 13.3), (9, 10.1, 9.6)]),
)
def test_both_ratios_of_orq_on_resnet18(levels: int, printed: float, metered: float) -> None:
    analytic = analytic_ratio(build_method("orq", level_count=levels))
    assert analytic is not None and round(analytic, 1) == printed
    with torch.device("meta"):
        shapes = {k: p.shape for k, p in resnet18((3, 32, 32), 10).named_parameters()}
    grads, comm = {k: torch.zeros(1, *shape) for k, shape in shapes.items()}, Comm(1)
    aggregate(build_method("orq", level_count=levels), grads, comm=comm)
    dense = 32 * sum(shape.numel() for shape in shapes.values())
    assert round(dense / comm.meter.sent_bits[0], 1) == metered


@pytest.mark.parametrize(
    ("choice", "settings", "printed"),
    [
        ("linear", {"level_count": 5}, 13.8),
        (
            "qsgd_levels",
            {"level_count": 9, "error_feedback": True, "alpha": 0.2, "clip_norm": 0.4},
            10.1,
        ),
        ("terngrad", {"min_size": 100}, 20.2),
        ("bingrad_pb", {}, 32),
        ("bingrad_b", {}, 32),
        ("qsgd", {"bits": 4, "exchange": "scatter"}, 8),
        ("ecqsgd", {"levels": 4}, 8),
    ],
)
def test_analytic_ratios(choice: str, settings: dict[str, Any], printed: float) -> None:
    analytic = analytic_ratio(build_method(choice, **settings))
    assert analytic is not None and round(analytic, 1) == printed


@pytest.mark.parametrize("choice", ["none", "powersgd", "top_k"])
def test_methods_whose_papers_count_all_that_is_sent_have_no_other_ratio(choice: str) -> None:
    assert analytic_ratio(build_method(choice)) is None


@each("align", [False, True])
def test_codes_of_any_length_have_no_ratio_before_they_are_sent(align: bool) -> None:
    assert analytic_ratio(build_method("qsgd", align=align)) == 8
    assert analytic_ratio(build_method("qsgd", align=align, code="elias_dense")) is None


def test_the_compressed_share_counts_what_was_sent_whole() -> None:
    """These are small tensors, the first exchange as a warm-up, and two further exchanges."""
    method, shapes = build_method("qsgd", min_size=20, dense_steps=1), [(10, 10), (10,)]
    assert compressed_share(method, shapes, exchanges=0) == pytest.approx(100 / 110)
    assert compressed_share(method, shapes, exchanges=4) == pytest.approx(100 / 110 * 3 / 4)
    assert compressed_share(method, shapes, 4, whole=2) == pytest.approx(100 / 110 * 3 / 6)
