"""Stacks of matrices, thin matrices, and 1-D convolutions, for all methods that code matrices."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from method_cases import CHOICES, aggregate, build_unchecked, keys_of
from nightly import each
from torch import Tensor, nn

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor, Grads, State
from gcbench.core.methods.acpsgd import ACPSGD, UnbiasedLowRank
from gcbench.core.methods.atomo import Atomo
from gcbench.core.methods.dion import Dion
from gcbench.core.methods.matrices import StacksOfMatrices
from gcbench.core.methods.powersgd import PowerSGD
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.methods.random_sparse import RandomBlock, RandomK
from gcbench.core.parameters import shapes_of_parameters
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.virtual import compressed_share, parts_of
from gcbench.runner.predict.payload import Payload

OF_MATRICES = [choice for choice in CHOICES if "min_ratio" in keys_of(choice)]
EVERY: dict[str, dict[str, Any]] = {
    "powersgd": {"error_feedback": True},
    "powersgd aggregated": {"error_feedback": True, "residual": "aggregated"},
    "powersgd loco": {"error_feedback": "loco"},
    "powersgd svd": {"error_feedback": False, "svd": True},
    "acpsgd": {"error_feedback": True},
    "dion": {},
    "dion2": {},
    "atomo": {},
    "unbiased_lowrank": {},
    "unbiased_lowrank alternating": {"variant": "alternating"},
}


def every(name: str) -> Compressor:
    method = name.split()[0]
    size = {"rank": 2} if "rank" in keys_of(method) else {}
    return build_unchecked(method, {**size, **EVERY[name]})


def draw(number: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(number))


def steps(compressor: Compressor, rows: list[Grads]) -> tuple[list[Grads], State, Comm]:
    comm, state, updates = Comm(3), State(), []
    for number, grads in enumerate(rows):
        out = aggregate(compressor, grads, number=number, state=state, comm=comm)
        out.sent()
        state = out.state
        updates.append(out.update)
    return updates, state, comm


def test_all_methods_of_factors_are_tried() -> None:
    of_rows = {"dion2"}  # it sends no factors, which could be larger than a matrix
    assert {name.split()[0] for name in EVERY} == {*OF_MATRICES, *of_rows}
    assert {
        choice
        for choice in CHOICES
        if any(isinstance(part, StacksOfMatrices) for part in parts_of(build_unchecked(choice, {})))
    } == {*OF_MATRICES, *of_rows}


@each("name", EVERY)
def test_a_stack_is_its_matrices_to_the_bit(name: str) -> None:
    """Updates, states and bits are those of a list of matrices, such as experts one by one."""
    stacked, listed = [], []
    for number in range(3):
        experts, other = draw(number, (4, 9, 7)), draw(number + 10, (12, 8))
        stacked.append({"w": experts, "other": other})
        listed.append({**{f"e{i}": experts[:, i] for i in range(4)}, "other": other})
    updates, state, comm = steps(every(name), stacked)
    expected, expected_state, expected_comm = steps(every(name), listed)
    for got, wanted in zip(updates, expected, strict=True):
        assert list(got) == ["w", "other"]
        assert torch.equal(got["w"], torch.stack([wanted[f"e{i}"] for i in range(4)], dim=1))
        assert torch.equal(got["other"], wanted["other"])
    assert comm.meter.sent_bits == expected_comm.meter.sent_bits
    for layer, single in zip(state.layers(), expected_state.layers(), strict=True):
        for got, wanted in ((layer.shared, single.shared), (layer.per_worker, single.per_worker)):
            assert ("w" in got) == ("e0" in wanted)
            if got:
                assert torch.equal(got["w"], torch.stack([wanted[f"e{i}"] for i in range(4)], 1))
    only = state.select(["w"])  # as an exchange of one bucket does
    assert state.replace(only).shared.keys() == state.shared.keys()


@each("method", [RandomK(2), RandomBlock(2)])
def test_a_stack_has_the_budget_of_its_matrices(method: Compressor) -> None:
    _, _, comm = steps(build(method), [{"w": draw(0, (4, 9, 7))}])
    assert comm.meter.sent_bits[0] == 32 * 4 * 2 * (9 + 7)


def test_a_convolution_is_one_matrix() -> None:
    """A 1-D convolution has the shape of a stack, so that compressors get it with a fourth side."""
    model = nn.Sequential(
        nn.Conv1d(4, 6, 5),
        nn.ConvTranspose1d(6, 3, 5),
        nn.Conv2d(3, 5, 3),
        nn.Linear(4, 2),
        nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 8, 3)),
    )
    model.experts = nn.Parameter(torch.zeros(4, 6, 5))
    model[3].bias.requires_grad_(False)
    shapes = shapes_of_parameters(model)
    assert shapes == {
        "experts": (4, 6, 5),
        "0.weight": (6, 4, 5, 1),
        "0.bias": (6,),
        "1.weight": (6, 3, 5, 1),
        "1.bias": (3,),
        "2.weight": (5, 3, 3, 3),
        "2.bias": (5,),
        "3.weight": (2, 4),
        "4.bias": (8,),
        "4.parametrizations.weight.original0": (8, 1, 1, 1),
        "4.parametrizations.weight.original1": (8, 4, 3, 1),
    }
    bits = {}
    for name in ("experts", "0.weight"):
        _, _, comm = steps(
            build_unchecked("powersgd", {"rank": 1}), [{name: draw(0, shapes[name])}]
        )
        bits[name] = comm.meter.sent_bits[0]
    assert bits == {"experts": 32 * 4 * (6 + 5), "0.weight": 32 * (6 + 4 * 5)}


THIN = {
    "square": (16, 16),
    "column": (31, 1),
    "row": (1, 31),
    "head": (40, 10),
    "wide": (30, 40),
    "one": (1, 1),
    "conv": (16, 2, 3, 3),
    "experts": (4, 6, 50),
    "thin experts": (4, 6, 7),
}
COUNTS = {
    "powersgd": lambda n, m, r: r * (n + m),
    "dion": lambda n, m, r: r * (n + m),
    "acpsgd": lambda n, m, r: r * (n + m) / 2,
    "unbiased_lowrank": lambda n, m, r: r * n,
}


@pytest.mark.parametrize("choice", OF_MATRICES)
def test_matrices_that_save_too_little_are_sent_whole(choice: str) -> None:
    """No tensor costs more bits than it has, and all as many as predicted; 0 sends all factors."""
    for rank, min_ratio in product((1, 3, 12), (0, 1, 2.5)):
        method = build_unchecked(choice, {"rank": rank, "min_ratio": min_ratio})
        total, shares = 0.0, []
        for name, shape in THIN.items():
            _, _, comm = steps(method, [{name: draw(i, shape)} for i in range(2)])
            bits, whole = comm.meter.sent_bits[0] / 2, 32 * math.prod(shape)
            n, m = shape[-2:] if len(shape) == 3 else (shape[0], math.prod(shape[1:]))
            if choice in COUNTS:
                factors = 32 * math.prod(shape) / (n * m) * COUNTS[choice](n, m, min(rank, n, m))
                assert bits == (whole if min_ratio * factors > whole else factors), (name, rank)
            assert not min_ratio or bits <= whole, (name, rank)
            total += bits
            shares.append(compressed_share(method, [shape], exchanges=10))
            assert shares[-1] in (0, 1)
            assert not shares[-1] or bits * min_ratio <= whole
        if rank == 3 and min_ratio == 1:
            assert sum(message.bits for message in Payload(method, THIN).at(4)) == total
        assert min_ratio or all(shares)
        assert rank > 1 or any(shares)


def test_only_methods_of_matrices_take_min_ratio() -> None:
    with pytest.raises(ValueError, match="min_ratio=1: QSGD sends no factors of matrices; leave"):
        build(QSGD(7, bucket_size=16), min_ratio=1)
    for method in (PowerSGD(2), ACPSGD(2), Dion(2, 0.9), Atomo(2), UnbiasedLowRank(2)):
        build(method, min_ratio=1)


def test_dion_makes_directions_of_matrices_that_are_sent_whole() -> None:
    """The update, and the mean momentum, are those of factors; bits are those of the gradient."""
    rows = [{"w": draw(i, (5, 4)), "bias": draw(9 + i, (4,))} for i in range(4)]
    settings = {"rank": 64, "momentum": 0.9}
    updates, state, comm = steps(build_unchecked("dion", {"min_ratio": 1, **settings}), rows)
    expected, factors_state, _ = steps(build_unchecked("dion", {"min_ratio": 0, **settings}), rows)
    for got, wanted in zip(updates, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert state.per_worker["w"].shape == (3, 5, 4)
    torch.testing.assert_close(
        state.per_worker["w"].mean(0), factors_state.per_worker["w"].mean(0), rtol=1e-3, atol=1e-4
    )
    assert comm.meter.sent_bits[0] == 4 * 32 * (20 + 4)
