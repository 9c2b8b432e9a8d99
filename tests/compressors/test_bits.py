"""Metered bits against what the papers count, for small gradients and for the published networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from method_cases import ALL, CHOICES, SHAPES, STEPS, WORKERS, Trace, aggregate, built, composed, variants
from torch import nn

from gcbench.comm import VirtualComm
from gcbench.compressors import Grads, State
from gcbench.models.lstm import LSTM
from gcbench.models.resnet import resnet18

Traces = dict[str, list[dict[tuple[str, str], Trace]]]
Shapes = Mapping[str, tuple[int, ...]]
Settings = dict[str, Any]


def numel(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def dense_bits(shapes: Shapes, bits: int = 32) -> tuple[int, int]:
    """Sent and received by an all-reduce."""
    total = bits * sum(map(numel, shapes.values()))
    return total, total


def qsgd_bits(settings: Settings, shapes: Shapes, workers: int) -> tuple[int, int]:
    """ceil(log2(2 s + 1)) bits a value in whole groups of eight, 32 a bucket; small tensors whole."""
    small = {k: s for k, s in shapes.items() if numel(s) < settings["min_size"]}
    sizes = [numel(s) for k, s in shapes.items() if k not in small]
    width = math.ceil(math.log2(2 * settings["levels"] + 1))
    codes = width * 8 * math.ceil(sum(sizes) / 8)
    scales = 32 * sum(math.ceil(n / settings["bucket_size"]) for n in sizes)
    whole, _ = dense_bits(small)
    return whole + codes + scales, whole + (workers - 1) * (codes + scales)


def powersgd_bits(settings: Settings, shapes: Shapes, workers: int) -> tuple[int, int]:
    """r (n + m) floats a matrix, r = min(rank, n, m); vectors and small matrices whole."""
    floats = 0
    for shape in shapes.values():
        if len(shape) < 2 or numel(shape) < settings["min_size"]:
            floats += numel(shape)
        else:
            n, m = shape[0], numel(shape) // shape[0]
            floats += min(settings["rank"], n, m) * (n + m)
    return 32 * floats, 32 * floats


FORMULAS: dict[str, Callable[[Settings, Shapes, int], tuple[int, int]]] = {
    "none": lambda settings, shapes, workers: dense_bits(shapes),
    "fp16": lambda settings, shapes, workers: dense_bits(shapes, 16),
    "bf16": lambda settings, shapes, workers: dense_bits(shapes, 16),
    "qsgd": qsgd_bits,
    "powersgd": powersgd_bits,
}


def test_every_choice_has_its_formula() -> None:
    assert set(FORMULAS) == set(CHOICES)


@pytest.mark.parametrize(("choice", "variant"), ALL)
def test_bits_of_three_steps_follow_the_formula(traces: Traces, choice: str, variant: str) -> None:
    overrides = [f"{k}={str(v).lower()}" for k, v in variants(choice)[variant].items()]
    settings = composed(choice, *overrides)
    dense_steps = settings.get("dense_steps", 0)
    by_step = [dense_bits(SHAPES) if i < dense_steps else FORMULAS[choice](settings, SHAPES, WORKERS) for i in range(STEPS)]
    seen = traces["1x4"][0][choice, variant]
    assert seen.sent_bits == [sum(sent for sent, _ in by_step)] * WORKERS
    assert seen.received_bits == [sum(received for _, received in by_step)] * WORKERS


def test_the_formula_of_qsgd_by_hand() -> None:
    """4 bits: 162 + 6 + 130 + 1 + 130 + 1 + 37 = 467 values are 59 groups, in 11 + 1 + 9 + 1 + 9 + 1 + 3 buckets of 16."""
    settings = {"levels": 7, "bucket_size": 16, "min_size": 0}
    assert qsgd_bits(settings, SHAPES, 4) == (59 * 8 * 4 + 35 * 32, 3 * (59 * 8 * 4 + 35 * 32))


# The published networks

RESNET18, LSTM_28869 = 11_173_962, 28_949_319


def parameters(model: Callable[[], nn.Module]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in model().named_parameters()}


@cache
def network(name: str) -> tuple[dict[str, tuple[int, ...]], Grads]:
    """Shapes, and one worker's gradient."""
    shapes = parameters({"resnet18": lambda: resnet18((3, 32, 32), 10), "lstm": lambda: LSTM(28869)}[name])
    sizes = list(map(numel, shapes.values()))
    row = torch.randn(1, sum(sizes), generator=torch.Generator().manual_seed(0))
    parts = row.split(sizes, dim=1)
    return shapes, {k: x.view(1, *s) for (k, s), x in zip(shapes.items(), parts, strict=True)}


def step_bits(choice: str, name: str, **settings: Any) -> int:
    """Metered in one step of one worker."""
    comm, (_, grads) = VirtualComm(1), network(name)
    out = aggregate(built(choice, **settings), grads, comm=comm, state=State())
    assert all(u.isfinite().all() for u in out.update.values())
    return comm.meter.sent_bits[0]


def test_networks_have_the_published_sizes() -> None:
    assert sum(map(numel, network("resnet18")[0].values())) == RESNET18
    assert sum(map(numel, network("lstm")[0].values())) == LSTM_28869


@pytest.mark.parametrize(("rank", "floats"), [(1, 45_935), (2, 82_260), (4, 154_910), (7, 263_885)])
def test_powersgd_sends_the_published_floats_of_resnet18(rank: int, floats: int) -> None:
    assert step_bits("powersgd", "resnet18", rank=rank) == 32 * floats


@pytest.mark.parametrize(("rank", "floats"), [(1, 93_488), (2, 142_507), (4, 240_545)])
def test_powersgd_sends_the_published_floats_of_the_lstm(rank: int, floats: int) -> None:
    assert step_bits("powersgd", "lstm", rank=rank, error_feedback=False) == 32 * floats


@pytest.mark.parametrize("choice", CHOICES)
def test_bits_of_resnet18_follow_the_formula_and_stay_below_dense(choice: str) -> None:
    bits = step_bits(choice, "resnet18")
    assert bits == FORMULAS[choice](composed(choice), network("resnet18")[0], 1)[0]
    assert bits < 32 * RESNET18 or (choice, bits) == ("none", 32 * RESNET18)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_qsgd_costs_its_bits_and_a_scale_a_bucket(bits: int) -> None:
    """With nothing sent whole: at least b + 32 / 512 bits a value, and less than 1 % more."""
    per_value = step_bits("qsgd", "resnet18", bits=bits, min_size=0) / RESNET18
    assert bits + 32 / 512 <= per_value < 1.01 * (bits + 32 / 512)
