"""EF21-Muon against the equations of its papers in float64, and what its row in the tables has."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from method_cases import WORKERS, aggregate, build_method, flat, gradients
from torch import Tensor, nn

from gcbench.core.compressor import State
from gcbench.core.methods.ef21 import WorkerMomentum
from gcbench.core.methods.natural import Natural
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build
from gcbench.runner.config.compose import resolve_overrides
from gcbench.runner.launch.optimization import make_optimizer
from gcbench.runner.settings.groups import OptimizerSettings

MU, SHARE = 0.9, 0.15


def keep_largest(x: Tensor) -> Tensor:
    """Return rows with zeros except for the `SHARE` of largest magnitude in each."""
    k = max(1, int(SHARE * x.shape[1]))
    return torch.zeros_like(x).scatter(1, (at := x.abs().topk(k, dim=1).indices), x.gather(1, at))


def in_shards(x: Tensor) -> Tensor:
    """Return rows of n values as those of W shards each, padded with zeros to equal lengths."""
    size = 8 * math.ceil(x.shape[1] / (8 * WORKERS))
    return nn.functional.pad(x, (0, WORKERS * size - x.shape[1])).view(-1, size)


def keep_largest_of_shards(x: Tensor) -> Tensor:
    return keep_largest(in_shards(x)).view(len(x), -1)[:, : x.shape[1]]


def test_updates_are_those_of_the_equations_both_ways() -> None:
    """Workers code m_i - h_i, and the owners of shards how the mean of the h_i differs from h."""
    compressor = build_method("ef21_muon", fraction=SHARE, momentum=MU)
    state, m, h_i = State(), torch.zeros(1), torch.zeros(1)
    h = torch.zeros(1)
    for number in range(24):
        grads = gradients(range(WORKERS), number)
        out = aggregate(compressor, grads, number=number, state=state)
        m = MU * m + (1 - MU) * flat(grads)
        h_i = h_i + keep_largest_of_shards(m - h_i)
        h = h + keep_largest_of_shards(h_i.mean(0, keepdim=True) - h)
        torch.testing.assert_close(flat(out.update), h, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(flat(out.sent()), h_i, rtol=1e-5, atol=1e-7)
        goal = out.goal_of(grads)()
        torch.testing.assert_close(flat(goal.wanted), m, rtol=1e-5, atol=1e-7)
        assert goal.got is out.update
        state = out.state


def test_a_goal_is_the_same_after_the_next_step_has_begun() -> None:
    """With double buffering, errors are sampled then, and a step may overwrite the state."""
    compressor, out = build_method("ef21_muon"), None
    for number in range(3):
        before = out and flat(out.goal_of({})().wanted)
        last, grads = out, gradients(range(WORKERS), number)
        state = out.state if out else State()
        out = aggregate(compressor, grads, number=number, state=state, in_place=True)
        assert before is None or (last and torch.equal(flat(last.goal_of({})().wanted), before))


@pytest.mark.parametrize("exchange", ["gather", "scatter"])
def test_only_what_workers_send_is_coded_with_other_exchanges(exchange: str) -> None:
    compressor = build_method("ef21_muon", fraction=SHARE, momentum=MU, exchange=exchange)
    state, m = State(), torch.zeros(1)
    for number in range(6):
        grads = gradients(range(WORKERS), number)
        out = aggregate(compressor, grads, number=number, state=state)
        m = MU * m + (1 - MU) * flat(grads)
        torch.testing.assert_close(
            flat(out.update), flat(out.sent()).mean(0, keepdim=True), rtol=1e-5, atol=1e-7
        )
        state = out.state
    torch.testing.assert_close(flat(state.per_worker), m, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("codec", [Natural(), QSGD(levels=31, bucket_size=16)])
def test_owners_keep_all_that_they_did_not_send_of_unbiased_codes_too(codec: Any) -> None:
    """h and the owners' residuals are the mean of all h_i: without these, h would drift away."""
    compressor, state = build(codec, error_feedback="ef21", exchange="scatter_coded"), State()
    for number in range(50):
        out = aggregate(compressor, gradients(range(WORKERS), number), number=number, state=state)
        state = out.state
    mean = flat(out.sent()).mean(0, keepdim=True)
    *_, owners = state.layers()
    kept = owners.per_worker["shard"].double().view(1, -1)[:, : mean.shape[1]]
    assert kept.norm() > 1e-3 * mean.norm()
    torch.testing.assert_close(flat(out.update) + kept, mean, rtol=1e-5, atol=1e-6)


def test_with_local_minima_that_differ_it_comes_to_that_of_all() -> None:
    """Coded both ways, plain SGD on h ends where that on gradients does."""
    centers = {"x": torch.randn(WORKERS, 40, generator=torch.Generator().manual_seed(3))}
    compressor, state = build_method("ef21_muon", fraction=0.1, momentum=0.5), State()
    x = torch.zeros(1, 40)
    for number in range(800):
        out = aggregate(compressor, {"x": x - centers["x"]}, number=number, state=state)
        state, x = out.state, x - 0.02 * out.update["x"]
    assert (x - centers["x"].mean(0)).norm() < 1e-3 * centers["x"].mean(0).norm()


def test_coded_estimates_end_where_the_papers_coded_models_do() -> None:
    """Its server sends w <- w + C(x - w); both end within a fifth of steps without compression."""
    exact, models, estimates = (last_loss(way) for way in ("exact", "models", "estimates"))
    assert 0.02 < exact < models < 1.2 * exact
    assert exact < estimates < 1.05 * models


def last_loss(way: str) -> float:
    """Return the excess loss after 400 steps along U V^T on quadratics of each worker's own."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    own, weights = normal(12, 20) + 0.5 * normal(4, 12, 20), 0.2 + normal(4, 12, 20).abs()
    best = (weights * own).sum(0) / weights.sum(0)
    compressor, state = build_method("ef21_muon", momentum=MU), State()
    x = w = m = h_i = torch.zeros(12, 20, dtype=torch.float64)
    for number in range(400):
        grads = weights * (w - own) + 0.3 * normal(4, 12, 20)
        m = MU * m + (1 - MU) * grads
        h_i = h_i + keep_largest((m - h_i).flatten(1)).view_as(own)
        along = (m if way == "exact" else h_i).mean(0)
        if way == "estimates":
            out = aggregate(compressor, {"x": grads.float()}, number=number, state=state)
            state, along = out.state, out.update["x"][0].double()
        u, _, v = torch.linalg.svd(along, full_matrices=False)
        x = x - 0.1 * (1 - number / 400) * u @ v
        coded = keep_largest((x - w).view(1, -1)).view_as(x)
        w = w + coded if way == "models" else x

    def loss(x: Tensor) -> float:
        return float((weights * (x - own).square()).sum() / 8)

    return loss(w) - loss(best)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.wide = nn.Embedding(5, 4), nn.Linear(4, 6)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 5)


def test_the_rows_optimizer_steps_by_the_papers_oracles() -> None:
    """x <- x - t LMO(h): U V^T of a hidden matrix, by Newton-Schulz, and signs of all others."""
    node = resolve_overrides(["+experiment/modern/gpt=ef21_muon"])[0].as_dict()["optimizer"]
    lr, model = node["lr"], Language()
    for group in node["groups"]:
        group.pop("match", None)
        group["weight_decay"] = 0
    changed = {**node, "weight_decay": 0, "groups": node["groups"][1:]}
    optimizer = make_optimizer(OptimizerSettings.of(changed), model)
    for _ in range(3):
        before = {k: p.detach().clone() for k, p in model.named_parameters()}
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
        for k, p in model.named_parameters():
            assert p.grad is not None
            moved = (before[k] - p.detach()) / lr
            if k != "wide.weight":
                torch.testing.assert_close(moved, 0.2 * p.grad.sign(), rtol=1e-2, atol=1e-3)
                continue
            u, _, v = torch.linalg.svd(p.grad, full_matrices=False)
            along = u.T @ moved @ v.T / (0.2 * math.sqrt(6))
            assert (along.diag() > 0.6).all() and (along.diag() < 1.25).all()
            torch.testing.assert_close(along, along.diag().diag(), rtol=0, atol=0.03)


def test_a_momentum_is_each_workers_own_with_ef21() -> None:
    layers: Any = build(Natural(), error_feedback="ef21", momentum=0.9)
    assert isinstance(layers.inner, WorkerMomentum)
