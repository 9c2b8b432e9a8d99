"""Real gradients of a small network that is trained for a few steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gcbench.runner.data.digits import digits
from gcbench.runner.models.mlp import MLP

RECORDED = (0, 10, 60)


@pytest.fixture(scope="session")
def real_gradients() -> dict[int, Tensor]:
    """Return the gradients `[2, n]` of two batches of digits, by training step.

    The first are those of the initial network, the last those of one that has learned.
    """
    torch.manual_seed(0)
    images, labels = digits().train
    model, found = MLP((1, 8, 8), 10, (256, 256)), {}
    for step in range(max(RECORDED) + 1):
        rows = []
        for _ in range(2):
            batch = torch.randint(len(labels), (32,))
            loss = cross_entropy(model(images[batch] / 16 - 0.3), labels[batch])
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            rows.append(torch.cat([g.flatten() for g in gradient]))
        if step in RECORDED:
            found[step] = torch.stack(rows)
        with torch.no_grad():
            for p, g in zip(
                model.parameters(),
                torch.stack(rows).mean(0).split([p.numel() for p in model.parameters()]),
                strict=True,
            ):
                p -= 0.3 * g.view_as(p)
    assert loss.item() < 1, "it learns"
    return found
