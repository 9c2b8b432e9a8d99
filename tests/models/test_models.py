"""Sizes as published, and every model learns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gcbench.models.cifar_resnet import Block, resnet20, resnet56, resnet110
from gcbench.models.linear import Linear
from gcbench.models.lstm import LSTM
from gcbench.models.mlp import MLP
from gcbench.models.resnet import resnet18, resnet50
from gcbench.models.vgg import vgg16

CIFAR = (3, 32, 32)
IMAGE_MODELS = [
    (resnet18, 11_173_962),
    (resnet50, 23_520_842),
    (resnet20, 269_722),
    (resnet56, 853_018),
    (resnet110, 1_727_962),
    (vgg16, 14_728_266),
]


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("factory", "parameters"), IMAGE_MODELS)
def test_image_model_has_the_published_size(factory: Callable[..., nn.Module], parameters: int) -> None:
    with torch.device("meta"):
        model = factory(CIFAR, 10)
        logits = model(torch.empty(2, *CIFAR))
    assert size(model) == parameters
    assert logits.shape == (2, 10)


def test_lstm_has_the_published_size() -> None:
    with torch.device("meta"):
        assert size(LSTM(28869)) == 28_949_319


def test_mlp_and_linear_sizes() -> None:
    assert size(MLP((1, 8, 8), 10, widths=[32])) == 64 * 32 + 32 + 32 * 10 + 10
    assert size(MLP((64,), 10, widths=[])) == size(Linear((1, 8, 8), 10)) == 650


SMALL = {
    "resnet18": (lambda: resnet18((1, 8, 8), 4), (1, 8, 8)),
    "resnet20": (lambda: resnet20((1, 8, 8), 4), (1, 8, 8)),
    "vgg16": (lambda: vgg16((1, 32, 32), 4), (1, 32, 32)),
    "mlp on images": (lambda: MLP((1, 8, 8), 4), (1, 8, 8)),
    "mlp on vectors": (lambda: MLP((20,), 4), (20,)),
    "linear": (lambda: Linear((20,), 4), (20,)),
}


@pytest.mark.parametrize(("make", "shape"), SMALL.values(), ids=SMALL)
def test_two_steps_lower_the_loss(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, inputs, targets = make(), torch.randn(8, *shape), torch.arange(8) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        loss = cross_entropy(model(inputs), targets)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[2] < losses[0]


def test_lstm_ties_its_weights_and_learns() -> None:
    torch.manual_seed(0)
    model, tokens = LSTM(50, width=16, layers=2, dropout=0.0), torch.randint(50, (3, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = cross_entropy(model(tokens)[0].flatten(0, 1), tokens.flatten())
    before.backward()
    optimizer.step()
    after = cross_entropy(model(tokens)[0].flatten(0, 1), tokens.flatten())
    assert after < before
    assert model.decoder.weight is model.embedding.weight


def test_lstm_carries_its_state() -> None:
    model, tokens = LSTM(50, width=16, layers=2).eval(), torch.randint(50, (3, 6))
    whole, _ = model(tokens)
    first, carry = model(tokens[:, :4])
    second, _ = model(tokens[:, 4:], carry)
    assert whole.shape == (3, 6, 50)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    assert LSTM.recurrent


def test_vgg_refuses_small_images() -> None:
    with pytest.raises(ValueError, match=r"28 x 28.*dataset=cifar10"):
        vgg16((1, 28, 28), 10)


def test_option_a_shortcut_adds_zero_channels() -> None:
    """With a last scale of zero a block is its shortcut alone."""
    block, inputs = Block(16, 32), torch.rand(2, 16, 8, 8)
    nn.init.zeros_(block.bn2.weight)
    outputs = block(inputs)
    torch.testing.assert_close(outputs[:, 8:24], inputs[:, :, ::2, ::2])
    assert not outputs[:, :8].any() and not outputs[:, 24:].any()
