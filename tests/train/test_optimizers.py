"""Torch's SGD, as its documentation has it, with weight decay after aggregation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gcbench.settings import OptimizerKind, OptimizerSettings
from gcbench.train.optimizers import make_optimizer


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_decays_weights_once_and_knows_nesterov(nesterov: bool) -> None:
    """SGD has d = g + decay x; m = 0.9 m + d; x = x - 0.1 m; with Nesterov x - 0.1 (d + 0.9 m)."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    settings = OptimizerSettings(
        OptimizerKind.sgd, lr=0.1, momentum=0.9, weight_decay=0.5, nesterov=nesterov
    )
    optimizer = make_optimizer(model, settings)
    x = {k: p.detach().clone() for k, p in model.named_parameters()}
    m = {k: torch.zeros_like(v) for k, v in x.items()}
    for step in range(3):
        for k, p in model.named_parameters():
            p.grad = torch.full_like(p, 0.5 + step)
            d = p.grad + (0.5 * x[k] if k.startswith("0.") else 0)  # none on batch normalization
            m[k] = 0.9 * m[k] + d
            x[k] = x[k] - 0.1 * (d + 0.9 * m[k] if nesterov else m[k])
        optimizer.step()
    for k, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), x[k])


@pytest.mark.parametrize("kind", list(OptimizerKind))
def test_the_parameters_of_norms_may_have_a_multiple_of_the_rate(kind: OptimizerKind) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    settings = OptimizerSettings(kind, lr=0.1, momentum=0.0, norm_lr_scale=64)
    groups = make_optimizer(model, settings).param_groups
    scales = {id(p): group.get("lr_scale", 1.0) for group in groups for p in group["params"]}
    assert [scales[id(p)] for p in model.parameters()] == [1, 1, 64, 64]
