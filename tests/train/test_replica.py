"""One model that serves all workers of a process, in training and in tests."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gcbench.comm import LocalControl
from gcbench.data import ArrayData
from gcbench.records.clock import Clock
from gcbench.settings import Precision, TrainerSettings
from gcbench.train.evaluation import evaluate
from gcbench.train.replica import Replica

CPU = torch.device("cpu")
SETTINGS = TrainerSettings(gpus=2, batch_size=8, epochs=1, precision=Precision.fp32)
BATCH = (torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)


def replica_of(*layers: nn.Module) -> Replica:
    return Replica(nn.Sequential(*layers), "classification", range(2), CPU, SETTINGS)


def gradients(replica: Replica, step: int = 0) -> torch.Tensor:
    """Return both workers' gradients of one and the same batch."""
    replica.begin()
    for row in range(2):
        replica.backward(row, BATCH, (1, step), Clock(CPU))
    return replica.flat.clone()


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.Dropout(0.5)], ids=["norm", "dropout"])
def test_a_test_is_made_with_the_model_in_evaluation_mode(layer: nn.Module) -> None:
    """The score is that of running statistics and of all neurons, and changes neither."""
    replica = replica_of(layer, nn.Linear(4, 3))
    gradients(replica)
    before = {name: tensor.clone() for name, tensor in replica.model.state_dict().items()}
    data = ArrayData("eight", "classification", 3, BATCH, BATCH)
    losses = [evaluate(replica, data, LocalControl(), (0, 1), size)["loss"] for size in (8, 8, 2)]
    model = replica.model.eval()
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(model(BATCH[0]), BATCH[1]))
    assert losses == pytest.approx([expected] * 3, rel=1e-6)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    gradients(replica)
    assert model.training


def test_dropout_differs_by_worker_and_by_step() -> None:
    torch.manual_seed(0)
    dropping = replica_of(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3))
    first, second = gradients(dropping)
    assert not torch.equal(first, second)
    assert not torch.equal(gradients(dropping, step=1)[0], first)
    assert torch.equal(gradients(dropping)[1], second), "it is a function of worker and step"
    first, second = gradients(replica_of(nn.Linear(4, 50), nn.Linear(50, 3)))
    assert torch.equal(first, second)
