"""Models have their published sizes, and every model learns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from nightly import each, slow_but
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax, logsigmoid

from gcbench.runner.models import imagenet
from gcbench.runner.models.airnet import AirNet
from gcbench.runner.models.cifar_resnet import (
    Block,
    resnet8,
    resnet20,
    resnet32,
    resnet56,
    resnet110,
)
from gcbench.runner.models.inception import bn_inception, googlenet
from gcbench.runner.models.linear import Linear, Logistic
from gcbench.runner.models.lstm import LSTM, SpeechLSTM
from gcbench.runner.models.mlp import MLP
from gcbench.runner.models.resnet import resnet18, resnet50
from gcbench.runner.models.vgg import vgg8, vgg16

CIFAR, IMAGENET = (3, 32, 32), (3, 224, 224)
IMAGE_MODELS = [
    (resnet18, 11_173_962),
    (resnet50, 23_520_842),
    (resnet8, 75_290),
    (resnet20, 269_722),
    (resnet32, 464_154),
    (resnet56, 853_018),
    (resnet110, 1_727_962),
    (vgg8, 74_138),
    (vgg16, 14_728_266),
    (googlenet, 6_158_346),
    (AirNet, 1_972_768),
]
# Parameters, and the millions that table 1 of QSGD or of ORQ prints; torchvision's AlexNet is not
# quite that of QSGD, which has 62.
IMAGENET_MODELS = [
    (imagenet.alexnet, 61_100_840, 61.1),
    (imagenet.vgg19, 143_667_240, 143.7),
    (imagenet.resnet50, 25_557_032, 25.6),
    (imagenet.resnet152, 60_192_808, 60),
    (imagenet.densenet161, 28_681_000, 28.7),
    (partial(imagenet.GoogLeNet, auxiliary=True), 13_004_888, 13.0),
    (bn_inception, 11_285_224, 11),
]


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@each(("factory", "parameters"), IMAGE_MODELS)
def test_image_model_has_the_published_size(
    factory: Callable[..., nn.Module], parameters: int
) -> None:
    with torch.device("meta"):
        model = factory(CIFAR, 10)
        logits = model(torch.empty(2, *CIFAR))
    assert size(model) == parameters
    assert logits.shape == (2, 10)


@each(("factory", "parameters", "millions"), IMAGENET_MODELS)
def test_imagenet_model_has_the_published_size(
    factory: Callable[..., nn.Module], parameters: int, millions: float
) -> None:
    with torch.device("meta"):
        model = factory(IMAGENET, 1000)
        logits = model(torch.empty(2, *IMAGENET))
    assert size(model) == parameters
    assert round(parameters / 1e6, 1 if isinstance(millions, float) else None) == millions
    assert logits.shape == (2, 1000)


@each("factory", [imagenet.alexnet, imagenet.densenet161, bn_inception])
@each("shape", [(1, 224, 224), (3, 63, 224)])
def test_imagenet_models_refuse_other_images(
    factory: Callable[..., nn.Module], shape: tuple[int, ...]
) -> None:
    says = rf"model=.*not {shape[0]} x {shape[1]} x 224; type dataset=imagenet"
    with pytest.raises(ValueError, match=says):
        factory(shape, 1000)


def test_lstm_has_the_published_size() -> None:
    with torch.device("meta"):
        assert size(LSTM(28869)) == 28_949_319
        assert size(LSTM(10000, width=128, layers=2)) == 1_554_192


def test_speech_lstm_has_the_published_size_and_scores_every_frame() -> None:
    with torch.device("meta"):
        model = SpeechLSTM((64, 40), 34)
        scores = model(torch.empty(2, 64, 40))
    assert size(model) == 12_974_434 and round(size(model) / 1e6) == 13
    assert scores.shape == (2, 64, 34)


def test_mlp_and_linear_sizes() -> None:
    assert size(MLP((1, 8, 8), 10, widths=[32])) == 64 * 32 + 32 + 32 * 10 + 10
    assert size(MLP((64,), 10, widths=[])) == size(Linear((1, 8, 8), 10)) == 650
    assert (
        size(Linear((90,), 1, bias=False)) == 90 and size(Logistic((5000,), 2, bias=False)) == 5000
    )


def test_logistic_regression_has_the_log_loss_of_its_score() -> None:
    model, inputs = Logistic((5,), 2), torch.randn(4, 5)
    score = inputs @ model[1].weight[0] + model[1].bias
    torch.testing.assert_close(
        log_softmax(model(inputs), 1), torch.stack([logsigmoid(-score), logsigmoid(score)], 1)
    )
    with pytest.raises(ValueError, match="the data set has 10; type model=linear"):
        Logistic((5,), 10)


SMALL = {
    "resnet18": (lambda: resnet18((1, 8, 8), 4), (1, 8, 8)),
    "resnet20": (lambda: resnet20((1, 8, 8), 4), (1, 8, 8)),
    "resnet8": (lambda: resnet8((1, 8, 8), 4), (1, 8, 8)),
    "vgg16": (lambda: vgg16((1, 32, 32), 4), (1, 32, 32)),
    "vgg8": (lambda: vgg8((1, 16, 16), 4), (1, 16, 16)),
    "googlenet": (lambda: googlenet((3, 16, 16), 4, width=0.25, blocks=[1, 1, 1]), (3, 16, 16)),
    "googlenet for imagenet": (lambda: imagenet.GoogLeNet((3, 64, 64), 4), (3, 64, 64)),
    "bn_inception": (lambda: bn_inception((3, 64, 64), 4), (3, 64, 64)),
    "airnet": (lambda: AirNet((3, 16, 16), 4, widths=(8, 8, 8)), (3, 16, 16)),
    "mlp on images": (lambda: MLP((1, 8, 8), 4), (1, 8, 8)),
    "mlp on vectors": (lambda: MLP((20,), 4), (20,)),
    "linear": (lambda: Linear((20,), 4), (20,)),
    "speech lstm": (lambda: SpeechLSTM((5, 20), 4, width=8), (5, 20)),
}


# For the others, some test trains or measures a similar model.
FAST = ["resnet18", "vgg8", "googlenet", "airnet", "mlp on vectors", "speech lstm"]


@pytest.mark.parametrize("name", slow_but(FAST, list(SMALL)))
def test_two_steps_lower_the_loss(name: str) -> None:
    make, shape = SMALL[name]
    torch.manual_seed(0)
    model, inputs = make(), torch.randn(8, *shape)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # as the losses of different steps are compared
    targets = (torch.arange(40) % 4).view(8, 5) if len(shape) == 2 else torch.arange(8) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        loss = cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
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


def test_lstm_drops_units_of_the_embedding_and_of_what_it_gives() -> None:
    """Half of each is dropped, and the rest is doubled."""
    model, tokens = LSTM(50, width=64, layers=2, dropout=0.5), torch.randint(50, (3, 6))
    entered, left = [], []
    model.lstm.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    model.lstm.register_forward_hook(lambda _, inputs, outputs: left.append(outputs[0]))
    model.decoder.register_forward_pre_hook(lambda _, inputs: left.append(inputs[0]))
    model(tokens)
    for dropped, whole in ((entered[0], model.embedding(tokens)), (left[1], left[0])):
        kept = dropped != 0
        assert 0.4 < kept.float().mean() < 0.6
        torch.testing.assert_close(dropped[kept], 2 * whole[kept])
    model.eval()(tokens)
    assert torch.equal(entered[1], model.embedding(tokens)) and torch.equal(left[2], left[3])


def test_vgg_refuses_small_images() -> None:
    with pytest.raises(ValueError, match=r"28 x 28.*dataset=cifar10"):
        vgg16((1, 28, 28), 10)
    with pytest.raises(ValueError, match=r"model=vgg8 halves its input 4 times.*8 x 8"):
        vgg8((1, 8, 8), 10)


def test_inception_blocks_have_the_papers_channels() -> None:
    """Shapes are those before the last pool; BN-Inception ends at 7 x 7, as in its paper."""
    with torch.device("meta"):
        assert googlenet(CIFAR, 10)[:-3](torch.empty(2, *CIFAR)).shape == (2, 1024, 8, 8)
        assert googlenet(CIFAR, 10, width=0.5, blocks=[1, 1, 1])[:-3](
            torch.empty(2, *CIFAR)
        ).shape == (2, 416, 8, 8)
        facts = googlenet(CIFAR, 10, stem_stride=2)[:-3](torch.empty(2, *CIFAR)).shape
        assert facts == (2, 1024, 4, 4)
        assert bn_inception(IMAGENET, 10)[:-3](torch.empty(2, *IMAGENET)).shape == (2, 1024, 7, 7)


@each(
    "wrong",
    [
        {"blocks": [2, 5]},
        {"blocks": [2, 6, 2]},
        {"blocks": [0, 1, 1]},
        {"width": 0.01},
        {"stem_stride": 0},
    ],
)
def test_googlenet_refuses_what_it_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"model\.width=.*model\.blocks=\[2,5,2\]"):
        googlenet(CIFAR, 10, **wrong)


def test_auxiliary_classifiers_have_no_part_in_training() -> None:
    model = imagenet.GoogLeNet((3, 64, 64), 4, auxiliary=True)
    outputs = model(torch.randn(2, 3, 64, 64))
    outputs.sum().backward()
    idle = {name.split(".")[1] for name, p in model.named_parameters() if p.grad is None}
    assert outputs.shape == (2, 4) and idle == {"aux1", "aux2"}


@each("channels", [16, 32])
def test_a_block_ends_with_a_rectifier_of_the_sum(channels: int) -> None:
    """Where the branch adds nothing, negative inputs become zeros."""
    block, inputs = Block(16, channels), torch.randn(2, 16, 8, 8)
    assert block(inputs).min() == 0
    nn.init.zeros_(block.bn2.weight)
    same = block(inputs)[:, (channels - 16) // 2 :][:, :16]
    torch.testing.assert_close(same, inputs[:, :, :: block.stride, :: block.stride].relu())


def test_option_a_shortcut_adds_zero_channels() -> None:
    """A block whose last scale is zero consists of its shortcut only."""
    block, inputs = Block(16, 32), torch.rand(2, 16, 8, 8)
    nn.init.zeros_(block.bn2.weight)
    outputs = block(inputs)
    torch.testing.assert_close(outputs[:, 8:24], inputs[:, :, ::2, ::2])
    assert not outputs[:, :8].any() and not outputs[:, 24:].any()
