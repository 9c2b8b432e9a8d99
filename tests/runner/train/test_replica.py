"""One model that serves all workers of a process, in training and in tests."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from nightly import each
from sentence import run
from torch import Tensor, nn

from gcbench.runner.control import LocalControl
from gcbench.runner.data import ArrayData, TokenData
from gcbench.runner.models.airnet import AirNet
from gcbench.runner.models.lstm import LSTM
from gcbench.runner.records.clock import Clock
from gcbench.runner.settings.groups import TrainerSettings
from gcbench.runner.train.optimizers import parameter_groups
from gcbench.runner.train.replica import Replica
from gcbench.runner.train.scores import evaluate

CPU = torch.device("cpu")
SETTINGS = TrainerSettings(workers=2, batch_size=8, epochs=1, precision="fp32")
BATCH = (torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)


def replica_of(*layers: nn.Module) -> Replica:
    return Replica(nn.Sequential(*layers), "classification", range(2), CPU, SETTINGS)


def gradients(replica: Replica, step: int = 0) -> torch.Tensor:
    """Return both workers' gradients of the same batch."""
    replica.begin()
    for row in range(2):
        replica.backward(row, BATCH, (1, step), Clock(CPU))
    return replica.flat.clone()


@each("layer", [nn.BatchNorm1d(4), nn.Dropout(0.5)])
def test_a_test_is_made_with_the_model_in_evaluation_mode(layer: nn.Module) -> None:
    """The score uses running statistics and all neurons, and changes no state."""
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


def test_frozen_parameters_are_in_no_gradient_and_stay() -> None:
    """A method sends the rows of gradients, and the optimizer moves the same parameters."""
    model = AirNet((3, 16, 16), 4, widths=(8, 8, 8))
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    before = {name: p.clone() for name, p in model.named_parameters()}
    replica = Replica(model, "classification", range(2), CPU, SETTINGS)
    assert not frozen.keys() & replica.grads.keys()
    assert replica.numel == sum(p.numel() for p in model.parameters()) - sum(
        p.numel() for p in frozen.values()
    )
    optimizer = torch.optim.SGD(parameter_groups(model, 0.1, []))
    replica.begin()
    replica.backward(0, (torch.randn(8, 3, 16, 16), torch.arange(8) % 4), (1, 0), Clock(CPU))
    for name, p in replica.parameters.items():
        p.grad = replica.grads[name][0]
    optimizer.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == replica.grads.keys()


def test_label_smoothing_is_of_the_training_loss_alone() -> None:
    """The smoothed loss is 0.9 times the plain loss plus 0.1 times its mean over all targets."""
    torch.manual_seed(0)
    settings = SETTINGS.model_copy(update={"label_smoothing": 0.1})
    model = nn.Linear(4, 3)
    replica = Replica(model, "classification", range(1), CPU, settings)
    replica.begin()
    loss = replica.backward(0, BATCH, (1, 0), Clock(CPU))
    logs = model(BATCH[0]).log_softmax(1)
    plain = -logs[torch.arange(8), BATCH[1]].mean()
    torch.testing.assert_close(loss, (0.9 * plain - 0.1 * logs.mean()).detach())
    data = ArrayData("eight", "classification", 3, BATCH, BATCH)
    score = evaluate(replica, data, LocalControl(), (0, 1), 8)["loss"]
    assert score == pytest.approx(plain.item(), rel=1e-6)


def test_rows_are_the_gradients_of_this_step_alone() -> None:
    """A parameter without a gradient has zeros, and no hook stays on a model that is used again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))
    replica = Replica(model, "classification", range(2), CPU, SETTINGS)
    gradients(replica)
    model.forward = model[0].forward  # type: ignore[method-assign]
    rows = gradients(replica, step=1)
    nn.functional.cross_entropy(model(BATCH[0]), BATCH[1]).backward()
    expected = torch.cat([p.grad.flatten() for p in model[0].parameters() if p.grad is not None])
    assert torch.equal(rows, torch.cat([expected, torch.zeros(12)]).expand(2, -1))


def test_what_a_row_gets_in_one_step_adds_up() -> None:
    replica = replica_of(nn.Linear(4, 3))
    once = gradients(replica)
    replica.backward(1, BATCH, (1, 0), Clock(CPU), weight=-0.5)
    assert torch.equal(replica.flat[0], once[0])
    torch.testing.assert_close(replica.flat[1], 0.5 * once[1])


def test_a_distance_is_the_2_norm_of_what_separates_the_weights() -> None:
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 1.0, 1.0, -4.0]]))
    replica = Replica(model, "regression", range(1), CPU, SETTINGS)
    half = (BATCH[0], torch.zeros(8, 1))
    optimum = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    data = ArrayData("eight", "regression", 1, half, half, optimum=optimum)
    assert evaluate(replica, data, LocalControl(), (0, 1), 8)["distance"] == 5


def test_a_text_is_read_with_its_hidden_state_however_it_is_cut() -> None:
    torch.manual_seed(0)
    replica = Replica(LSTM(12, 8, 1, 0.0), "language", range(1), CPU, SETTINGS)
    words = torch.randint(12, (400,))
    losses = [
        evaluate(replica, TokenData("text", 12, words, words, n), LocalControl(), (0, 1), 4)["loss"]
        for n in (5, 1000)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


class Counting(nn.Module):
    """Counts the samples of its training passes, in place and anew."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.sum()
            self.last = x.sum() + self.last
        return x


def test_workers_of_a_process_have_buffers_of_their_own_until_a_test() -> None:
    model = nn.Sequential(Counting(), nn.Linear(4, 3))
    replica, alone = replica_of(model), replica_of(deepcopy(model))
    other = BATCH[0] + 1, BATCH[1]
    for step in range(2):
        for one, batches in ((replica, (BATCH, other)), (alone, (BATCH,))):
            one.begin()
            for row, batch in enumerate(batches):
                one.backward(row, batch, (1, step), Clock(CPU))
        assert dict(replica.model.named_buffers()) == dict(alone.model.named_buffers())
    own = torch.stack(replica._own_buffers[1])
    torch.testing.assert_close(own, 2 * other[0].sum().expand(2))
    replica.begin_evaluation()
    replica.begin()
    assert replica._own_buffers[1] == [model[0].seen, model[0].last]


@pytest.mark.usefixtures("copied_workers")
def test_a_spectral_norm_is_that_of_real_workers(tmp_path: Path) -> None:
    """Its vectors, which are buffers, are improved in each training pass."""
    typed = ["model._target_=own_models.Spectral", "trainer.max_steps=3", "compressor=none"]
    weights = []
    for launcher in ("virtual", "local"):
        folder = tmp_path / launcher
        run(folder, *typed, "trainer.workers=2", f"trainer.launcher={launcher}")
        weights.append(torch.load(folder / "weights.pt"))
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_parameters_come_back_after_an_error() -> None:
    replica = replica_of(nn.Linear(2, 2))
    before = [p.detach().clone() for p in replica.parameters.values()]
    with (
        pytest.raises(RuntimeError, match="in the body"),
        replica.parameters_at([torch.ones_like(p) for p in before]),
    ):
        raise RuntimeError("in the body")
    assert all(map(torch.equal, replica.parameters.values(), before))


class Lookup(nn.Module):
    """Its table has sparse gradients, as only the backward pass can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(9, 3))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(len(x))
        return x[:, :3] + nn.functional.embedding(rows, self.table, sparse=True)


def test_a_sparse_gradient_is_named() -> None:
    with pytest.raises(ValueError, match="0.table: a compressor takes no sparse gradients; type "):
        gradients(replica_of(Lookup()))
